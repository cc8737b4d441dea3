"""llguidance's view of a tokenizer, and grammars compiled for it."""

from __future__ import annotations

import importlib.util
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from spec_sdk.contracts import Matcher
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

LARGEST_GRAMMAR = 1 << 18
"""Characters of a schema, a pattern or a grammar: what is larger is refused before it is read."""

_tokenizers: weakref.WeakKeyDictionary[Tokenizer, tuple[int, LLTokenizer]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def check_installed(name: str) -> None:
    """Raise UserError where the library is missing; ``name`` is the constraint that needs it."""
    if importlib.util.find_spec("llguidance") is None:
        raise UserError(f"constraint: '{name}' needs llguidance: pip install 'spec-sdk[constrained]'")


def check_one_given(option: str, given: object, text: str | None) -> None:
    """Raise UserError where both ``constraint.text`` and another ``option`` say what the grammar is."""
    if given is not None and text is not None:
        raise UserError(f"constraint.text: constraint.{option} is given too; give one of the two")


def check_size(text: str, option: str) -> None:
    """Raise UserError for a text that is too large to be compiled."""
    if len(text) > LARGEST_GRAMMAR:
        raise UserError(f"{option}: it has {len(text)} characters, and {LARGEST_GRAMMAR} are the most")


def matcher_of(make: Callable[[], str], tokenizer: Tokenizer, vocabulary: int, option: str, name: str) -> Matcher:
    """The matcher of the grammar that ``make`` makes. ``option`` and ``name`` are what it is called in messages.

    What compiling and matching may take is bounded by the library's own limits: steps of the lexer, states, items of
    the parser. Raises UserError for a grammar that is not valid or goes beyond them.
    """
    from llguidance import LLMatcher

    from spec_sdk_constraints.grammar_matcher import GrammarMatcher, fault_of
    from spec_sdk_constraints.grammar_parsers import GrammarParsers

    known = _tokenizer(tokenizer, vocabulary)
    try:
        grammar = make()
        parsers = GrammarParsers(lambda: LLMatcher(known, grammar, log_level=0), known)
    except ValueError as error:
        # also of half a surrogate pair
        raise UserError(f"{option}: {in_words(str(error))}") from error
    if parsers.first.is_error():
        raise UserError(f"{option}: {in_words(parsers.first.get_error()) or fault_of(parsers.first)}")
    return GrammarMatcher(parsers, frozenset(tokenizer.stop_ids), (vocabulary + 31) // 32 * 4, name)


def _tokenizer(tokenizer: Tokenizer, vocabulary: int) -> LLTokenizer:
    """Made once for a tokenizer; that takes about a second."""
    from llguidance import LLTokenizer

    if not tokenizer.stop_ids:
        raise UserError("constraint: the model names no token that ends an answer, so none could end by a grammar")
    with _lock:
        made = _tokenizers.get(tokenizer)
        if made is None or made[0] != vocabulary:
            try:
                known = LLTokenizer(tokenizer.to_json(), n_vocab=vocabulary, eos_token=sorted(tokenizer.stop_ids))
            except ValueError as error:
                reason = str(error).strip().partition("\n")[0]
                raise UserError(f"constraint: llguidance does not take this model's tokenizer: {reason}") from error
            made = _tokenizers[tokenizer] = (vocabulary, known)
        return made[1]


def in_words(error: str) -> str:
    """What a message of llguidance says, in one line: the reason, where a drawing of the place stands before it."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    if "coerce_one_of" in error:
        return "the members of a oneOf may overlap; use anyOf"
    said = next((line for line in lines if line.startswith("error: ")), None)
    return (said.removeprefix("error: ") if said else lines[0] if lines else "")[:300]
