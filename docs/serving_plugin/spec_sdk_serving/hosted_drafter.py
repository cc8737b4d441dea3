"""A drafter of spec-sdk at work for a program that has the target: it is told tokens, and asked for token trees."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
import yaml

from spec_sdk import UserError
from spec_sdk.contracts import Budget, Drafter, SamplingParams
from spec_sdk.contracts.request import RequestState
from spec_sdk.ops import Ops
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree

VARIABLE = "SPEC_SDK_DRAFTER"
DEFAULT = "suffix"
_ENDLESS = 2**31 - 1
"""New tokens of a request: the program says when it ends."""


class NoModels:
    """In the place of the models that a drafter may ask for."""

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            "drafter: it needs a model, which this program does not lend; export a trained draft with task=export, and "
            "let the program run it"
        )


def drafter_options(text: str | None = None) -> dict[str, Any]:
    """``NAME option=value …`` as the options of a drafter; by default those of the environment.

    Raises UserError for what is not of this form.
    """
    words = (os.environ.get(VARIABLE, DEFAULT) if text is None else text).split()
    options: dict[str, Any] = {"name": words[0] if words else DEFAULT}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"{VARIABLE}: {word!r} is not option=value, as in 'prompt_lookup max_ngram=4'")
        options[key.removeprefix("drafter.")] = yaml.safe_load(value)
    return options


class HostedDrafter:
    """One drafter for all requests of a process. Requests are known by keys that the program chooses.

    Raises UserError for a drafter that wants more than tokens: a model, hidden states, the target's probabilities.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        registry = Registry.discover()
        make_drafter, config = registry.configure("drafter", options)
        make_sampler, sampler_config = registry.configure("sampler", {"name": "reference"})
        drafter: Any = make_drafter(config, NoModels())  # type: ignore[call-arg]
        if drafter.taps or drafter.target_top_k:
            wanted = "hidden states" if drafter.taps else "the most probable tokens"
            raise UserError(
                f"drafter: '{options['name']}' wants {wanted} of the target, which this program does not give"
            )
        self._drafter: Drafter = drafter
        self._sampler: Any = make_sampler(sampler_config, SamplingParams())  # type: ignore[call-arg]
        self._ops = Ops()
        self._states: dict[Hashable, RequestState] = {}
        self._free: list[int] = []
        self._slots = 0

    def propose(self, key: Hashable, tokens: Sequence[int], depth: int, nodes: int) -> TokenTree:
        """A tree of at most ``depth`` tokens on a path and ``nodes`` nodes, the root included: the last of ``tokens``.

        ``tokens``: the whole text so far, prompt and answer. What went before must be what this request had before;
        where it is not, the request begins anew.
        """
        state = self._states.get(key)
        known = 0 if state is None else len(state.tokens)
        if state is None or len(tokens) < known or list(tokens[:known]) != state.tokens:
            self.forget([key])
            state = self._begin(key, tokens)
        elif new := list(tokens[known:]):
            state.tokens += new
            state.step += 1
            self._drafter.observe([state.view], [new])
        if depth < 1 or nodes < 2:
            return TokenTree.root_only(tokens[-1])
        [tree] = self._drafter.propose([state.view], [Budget(min(depth, nodes - 1), nodes)])
        return tree

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These requests have ended; those that are not known are passed over."""
        for key in keys:
            state = self._states.pop(key, None)
            if state is not None:
                self._drafter.finish([state.view])
                self._free.append(state.slot)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._states

    def tokens_of(self, key: Hashable) -> list[int]:
        """The text of a request that is known."""
        return self._states[key].tokens

    def rename(self, old: Hashable, new: Hashable) -> None:
        """The program knows the request by another key from now on."""
        self._states[new] = self._states.pop(old)

    @property
    def keys(self) -> list[Hashable]:
        """Those of all requests that are known, the longest known first."""
        return list(self._states)

    def _begin(self, key: Hashable, tokens: Sequence[int]) -> RequestState:
        if not self._free:
            self._free.append(self._slots)
            self._slots += 1
        slot = self._free.pop()
        generator = torch.Generator().manual_seed(slot)
        state = RequestState(
            list(tokens), len(tokens), _ENDLESS, self._sampler, generator, id=slot, slot=slot, ops=self._ops
        )
        self._states[key] = state
        self._drafter.start([state.view])
        return state
