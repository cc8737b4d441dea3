"""Greedy answers of an engine, with the bits of the logits that each token was chosen by.

Legend: V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.model.session import Scores
from spec_sdk.tree import TokenTree

Row = bytes
"""What the bits of a row of logits are known by."""


@dataclass
class Answered:
    """An answer's tokens, and the row of logits that each was chosen by."""

    tokens: list[int]
    rows: list[Row]

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.rows) > 0


def serve(engine: TokenEngine, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answered]:
    """Answers to the prompts together."""
    recorded = Recorded(engine)
    numbers = {engine.add(TokenRequest(prompt, max_new_tokens=new_tokens)): prompt for prompt in prompts}
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    try:
        while engine.busy:
            for progress in engine.step():
                if progress.error is not None:
                    raise progress.error
                tokens[progress.request] += progress.tokens
        return [Answered(tokens[number], recorded.rows_of(prompt)) for number, prompt in numbers.items()]
    finally:
        recorded.stop()


HOOKED = ("open", "score", "score_ahead", "score_closed", "take_ahead", "commit")


class Recorded:
    """Notes the rows of logits that an engine's target gave along the paths that were kept, by prompt."""

    def __init__(self, engine: TokenEngine) -> None:
        self._target: Any = engine.target
        self._by_prompt: dict[tuple[int, ...], list[Row]] = {}
        self._by_slot: dict[int, list[Row]] = {}
        self._logits: dict[int, torch.Tensor] = {}
        self._ahead: dict[int, torch.Tensor] = {}
        for name in HOOKED:
            setattr(self._target, name, getattr(self, f"_{name}"))

    def stop(self) -> None:
        for name in HOOKED:
            delattr(self._target, name)

    def rows_of(self, prompt: Sequence[int]) -> list[Row]:
        """One for each new token: of the node before it."""
        return self._by_prompt[tuple(prompt[:-1])]

    def _open(self, slot: int, tokens: Sequence[int], *others: Any) -> int:
        self._by_prompt[tuple(tokens)] = self._by_slot[slot] = []
        kept: int = type(self._target).open(self._target, slot, tokens, *others)
        return kept

    def _score(self, slots: Sequence[int], trees: Sequence[TokenTree], *others: Any) -> list[Scores]:
        scores: list[Scores] = type(self._target).score(self._target, slots, trees, *others)
        self._logits = {slot: each.logits_NV for slot, each in zip(slots, scores, strict=True)}
        return scores

    def _score_ahead(self, slots: Sequence[int], *others: Any) -> list[Scores] | None:
        scores: list[Scores] | None = type(self._target).score_ahead(self._target, slots, *others)
        self._ahead = {slot: each.logits_NV for slot, each in zip(slots, scores or (), strict=False)}
        return scores

    def _score_closed(self, slots: Sequence[int], *others: Any) -> list[Scores]:
        scores: list[Scores] = type(self._target).score_closed(self._target, slots, *others)
        self._ahead = {slot: each.logits_NV for slot, each in zip(slots, scores, strict=True)}
        return scores

    def _take_ahead(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> bool:
        taken: bool = type(self._target).take_ahead(self._target, slots, tokens)
        if taken:
            self._logits = {slot: self._ahead[slot] for slot in slots}
        return taken

    def _commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for slot, path in zip(slots, paths, strict=True):
            self._by_slot[slot] += [digest(self._logits[slot][node]) for node in path]
        type(self._target).commit(self._target, slots, paths)


def digest(row_V: torch.Tensor) -> Row:
    return hashlib.sha256(row_V.cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
