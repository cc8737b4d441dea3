"""What the scheduler needs of the model whose output counts.

Legend: M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from spec_sdk.model.config import EncoderConfig
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.session import EpilogueOf, Scores
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.tree import TokenTree


class Target(Protocol):
    """A :class:`~spec_sdk.model.session.Session`, or a table in a test."""

    @property
    def context(self) -> int: ...

    @property
    def encoder(self) -> EncoderConfig | None: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def deepest_tree(self) -> int | None: ...

    @property
    def one_launch(self) -> bool: ...

    @property
    def scores_closed(self) -> bool: ...

    def length(self, slot: int = 0) -> int: ...

    def shared(self, slot: int, tokens: Sequence[int], encoder_input: EncoderInput | None = None) -> int: ...

    def open(
        self, slot: int, tokens: Sequence[int], keep: bool = True, encoder_input: EncoderInput | None = None
    ) -> int: ...

    def reserve(self, slots: int, tokens: int) -> None: ...

    def prefill(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]: ...

    def prefill_scored(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Scores: ...

    def score(
        self,
        slots: Sequence[int],
        trees: Sequence[TokenTree],
        taps: Sequence[int] = (),
        epilogue: EpilogueOf | None = None,
    ) -> list[Scores]: ...

    def score_ahead(
        self, slots: Sequence[int], token_B: torch.Tensor, taps: Sequence[int], epilogue: EpilogueOf
    ) -> list[Scores] | None: ...

    def score_closed(
        self, slots: Sequence[int], roots: Sequence[int], closed: ClosedTrees, taps: Sequence[int]
    ) -> list[Scores]: ...

    def take_ahead(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> bool: ...

    def commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None: ...
