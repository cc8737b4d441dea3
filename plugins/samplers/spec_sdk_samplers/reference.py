"""The reference sampler: temperature, top-k, top-p and min-p, in that order.

Legend: N rows, V vocabulary, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import torch

from spec_sdk.contracts import Sampler
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops import Recipe
from spec_sdk.ops.in_pass import choices


class ReferenceSampler(Sampler):
    """Plain torch, on whatever device the logits are.

    The filters keep what transformers' logits processors keep. Where the border of top-p falls between tokens of equal
    probability, the lower ids stay; top-k keeps every token that ties with the k-th.
    """

    name = "reference"

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Raises UnusableLogits, naming the row, for logits that are NaN, +inf, or -inf throughout."""
        if self.greedy:
            choice_N = self.choices(logits_NV)
            self._check_rows(token >= 0 for token in choice_N.tolist())
            p_NV = torch.zeros(logits_NV.shape, dtype=torch.float32, device=logits_NV.device)
            return p_NV.scatter_(-1, choice_N[:, None], 1.0)
        score_NV = logits_NV.float()
        top_N = score_NV.amax(-1)
        self._check_rows(map(isfinite, top_N.tolist()))
        cut = 0 < self.params.top_k < score_NV.shape[-1]
        # softmax subtracts the maximum anyway; before it, it is subtracted where another temperature, however small,
        # could overflow
        if cut or self.params.temperature != 1:
            score_NV = score_NV - top_N[:, None]
            score_NV.div_(max(self.params.temperature, torch.finfo(torch.float32).tiny))
        if cut:
            kth_N1 = score_NV.topk(self.params.top_k).values[:, -1:]
            score_NV = score_NV.masked_fill(score_NV < kth_N1, float("-inf"))
        p_NV = score_NV.softmax(-1)
        if self.params.top_p == 1 and self.params.min_p == 0:
            return p_NV
        if self.params.top_p < 1:
            p_NV = self._nucleus(p_NV, self.params.top_p)
        if self.params.min_p > 0:
            p_NV = p_NV.masked_fill(p_NV < self.params.min_p * p_NV.amax(-1, keepdim=True), 0.0)
        return p_NV / p_NV.sum(-1, keepdim=True)

    def choices(self, logits_NV: torch.Tensor) -> torch.Tensor:
        on_host = logits_NV.device.type == "cpu" and logits_NV.dtype == torch.float32
        return _choices_on_host(logits_NV) if on_host else choices(logits_NV)

    @property
    def recipe(self) -> Recipe | None:
        return Recipe(self.params) if self.greedy else None

    @staticmethod
    def _nucleus(p_NV: torch.Tensor, top_p: float) -> torch.Tensor:
        """Zero all but the fewest most probable tokens whose sum reaches ``top_p``.

        Tokens below (1 - top_p) / V sum to less than 1 - top_p, so all of them lie outside and need no sorting. The
        likeliest are never below, but for rounding, where all are alike.
        """
        least_N1 = p_NV.amax(-1, keepdim=True).clamp_max((1 - top_p) / p_NV.shape[-1])
        count = int((p_NV >= least_N1).sum(-1).max())
        candidate_NK = p_NV.topk(count).indices.sort(-1).values
        p_NK, order_NK = p_NV.gather(-1, candidate_NK).sort(dim=-1, descending=True, stable=True)
        before_NK = p_NK.double().cumsum(-1) - p_NK
        kept_NK = p_NK.masked_fill(before_NK >= top_p, 0.0)
        return torch.zeros_like(p_NV).scatter_(-1, candidate_NK.gather(-1, order_NK), kept_NK)

    @staticmethod
    def _check_rows(sound_N: Iterable[bool]) -> None:
        unusable = next((row for row, sound in enumerate(sound_N) if not sound), None)
        if unusable is not None:
            raise UnusableLogits(unusable)


def _choices_on_host(logits_NV: torch.Tensor) -> torch.Tensor:
    """As ``choices``: NumPy looks for a row's largest number in vectors, torch for it and its place one by one."""
    rows_NV = logits_NV.detach().numpy()
    token_N = rows_NV.argmax(-1)
    for row, token in enumerate(token_N.tolist()):
        if not isfinite(rows_NV[row, token]):
            token_N[row] = -1
    return torch.from_numpy(token_N)
