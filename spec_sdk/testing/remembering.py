"""A sampler that works out each row of logits once: a table has few rows, and a test asks for them many times.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Random, Sampler
from spec_sdk.contracts.sampler_faults import as_probabilities
from spec_sdk.ops import DrawnTree, Rows
from spec_sdk.tree import DraftDistribution


class Remembering(Sampler):
    """Another sampler, of which single rows are remembered. Everything random is passed on."""

    name = "remembering"

    def __init__(self, inner: Sampler) -> None:
        super().__init__(inner.config, inner.params)
        self.inner = inner
        self.ops = inner.ops
        self._known: dict[bytes, torch.Tensor] = {}

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        if logits_NV.shape[0] != 1:
            return self.inner.probabilities(logits_NV)
        key = logits_NV.numpy().tobytes()
        if key not in self._known:
            self._known[key] = as_probabilities(self.inner.name, self.inner.probabilities(logits_NV), logits_NV)
        return self._known[key].clone()

    def choices(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return self.inner.choices(logits_NV)

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        return self.inner.penalise(logits_NV, prefix, paths)

    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        return self.inner.draw(p_V, random)

    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        return self.inner.draw_from(distribution, random)

    def draw_different(self, distribution: DraftDistribution, count: int, random: torch.Generator) -> list[int]:
        return self.inner.draw_different(distribution, count, random)

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        own = type(self.inner).rows is not Sampler.rows
        return self.inner.rows(tree, logits_NV) if own else super().rows(tree, logits_NV)
