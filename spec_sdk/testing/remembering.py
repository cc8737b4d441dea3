"""A sampler that works out each row of logits once: a table has few rows, and a test asks for them many times.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Random, Sampler
from spec_sdk.tree import DraftDistribution, TokenTree


class Remembering(Sampler):
    """Another sampler, of which single rows are remembered. Everything random is passed on."""

    name = "remembering"

    def __init__(self, inner: Sampler) -> None:
        super().__init__(inner.config, inner.params)
        self.inner = inner
        self._known: dict[bytes, torch.Tensor] = {}

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        if logits_NV.shape[0] != 1:
            return self.inner.probabilities(logits_NV)
        key = logits_NV.numpy().tobytes()
        if key not in self._known:
            self._known[key] = self.inner.probabilities(logits_NV)
        return self._known[key].clone()

    def choices(self, logits_NV: torch.Tensor) -> list[int]:
        return self.inner.choices(logits_NV)

    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        return self.inner.draw(p_V, random)

    def accepts(self, p: float, q: float, random: Random) -> bool:
        return self.inner.accepts(p, q, random)

    def residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        return self.inner.residual(p_V, q_V)

    def without(self, p_V: torch.Tensor, token: int) -> torch.Tensor:
        return self.inner.without(p_V, token)

    def draw_from(self, law: DraftDistribution, random: Random) -> int:
        return self.inner.draw_from(law, random)

    def rejection(
        self, tree: TokenTree, logits_NV: torch.Tensor, uniform_D: torch.Tensor, step: int = 0
    ) -> tuple[list[int], int] | None:
        return self.inner.rejection(tree, logits_NV, uniform_D, step)
