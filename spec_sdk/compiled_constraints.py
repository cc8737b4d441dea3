"""Constraints as requests name them, compiled for a model and kept: every answer after the first begins at once."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

from spec_sdk.contracts import AnyTokens, Constraint, Matcher
from spec_sdk.contracts.constraint import named
from spec_sdk.errors import PluginFault, UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.registry import Registry

MOST_KEPT = 64
NOTHING = {"name": "none"}
"""What settings name where nothing is ruled out."""
Given = Constraint | Matcher | Mapping[str, Any]
"""A constraint: a plugin, what one compiled to, or its name and options as YAML has them, ``{"name": "regex", …}``."""


class CompiledConstraints:
    """Compiles constraints for a tokenizer and a model of ``vocabulary`` output rows. Several threads may ask at once.

    The ``MOST_KEPT`` that were used last are kept.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        # the tokenizer keeps this, not the other way round
        self._tokenizer = weakref.ref(tokenizer)
        self._vocabulary = vocabulary
        self._kept: OrderedDict[Hashable, Matcher | None] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, given: Given | None) -> Matcher | None:
        """The matcher that answers are begun from; None where nothing is ruled out.

        Raises UserError for what is no constraint, or cannot be compiled, PluginFault for one that compiles to no
        matcher.
        """
        if given is None or given == NOTHING:
            return None
        if isinstance(given, Matcher):
            return None if isinstance(given, AnyTokens) else given
        constraint = made(given) if isinstance(given, Mapping) else given
        if not isinstance(constraint, Constraint):
            raise UserError(
                f"constraint: {given!r} is no constraint; give a mapping such as {{'name': 'regex', 'pattern': …}}"
            )
        key = type(constraint), constraint.key
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # others are compiled meanwhile; one that two ask for at once is compiled twice
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        compiled: object = constraint.compile(tokenizer, self._vocabulary)
        if not isinstance(compiled, Matcher):
            hint = " (AnyTokens is one that rules nothing out)" if compiled is None else ""
            raise PluginFault(
                f"constraint {constraint.name!r}: its compile returned {compiled!r}, which is no matcher{hint}"
            )
        matcher = None if isinstance(compiled, AnyTokens) else named(compiled, constraint.name)
        with self._lock:
            self._kept[key] = matcher
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return matcher


def compiled_for(tokenizer: Tokenizer, vocabulary: int) -> CompiledConstraints:
    """Those of a tokenizer: engines on the same model share what was compiled."""
    with _lock:
        made_before = _of_tokenizers.get(tokenizer)
        if made_before is None:
            made_before = _of_tokenizers[tokenizer] = CompiledConstraints(tokenizer, vocabulary)
        return made_before


_of_tokenizers: weakref.WeakKeyDictionary[Tokenizer, CompiledConstraints] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def made(node: Mapping[str, Any]) -> Constraint:
    """The plugin that a mapping names, with its options. Raises UserError for one that is unknown or wrong."""
    make: Any
    try:
        make, config = Registry.discover().configure("constraint", node)
    except RecursionError as error:
        raise UserError("constraint: its options are nested too deeply") from error
    constraint: Constraint = make(config)
    return constraint
