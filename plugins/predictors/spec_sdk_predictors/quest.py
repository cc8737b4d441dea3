"""Page-selected prediction (Quest: Tang et al., ICML 2024, arXiv:2406.10774).

Keys are grouped into pages, of which the element-wise minimum and maximum is kept. For a query q no key k of a page can
score higher than Σ_d max(q_d · min_d, q_d · max_d); the pages with the highest such bound are read, the others are not.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, P prefix length, C complete pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import PartialAttention, option
from spec_sdk.errors import UserError
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk_predictors.budget import BudgetedPredictor, attention_over_picked, chunk_slots, largest


@dataclass
class QuestConfig:
    """Options of ``predictor=quest``."""

    size: int = option(
        128, "half the budget: at most twice this many committed keys are read; shorter contexts are exact", minimum=1
    )
    page: int = option(16, "keys per page; the last complete page and the incomplete one are always read", minimum=1)

    def __post_init__(self) -> None:
        if 2 * self.size < 3 * self.page:
            raise UserError(
                f"predictor.page: {self.page} leaves no page to pick from a budget of 2 x {self.size} keys; "
                f"use {2 * self.size // 3 or 1} or less, or a larger predictor.size"
            )


class Quest(BudgetedPredictor):
    """Attention over the pages most likely to matter, the last page or two, and a query's own tree ancestors.

    The last complete page and the incomplete one after it are always read. Pages are picked per KV head, once for all
    queries of a pass: by the attention that the bounds would give the page (a softmax over the pages), summed over the
    KV head's query heads and the pass's queries. For one query of one head that is Quest's own order of pages.
    """

    name = "quest"
    Config = QuestConfig
    config: QuestConfig

    def __init__(self, config: QuestConfig) -> None:
        super().__init__(config)
        self._bounds: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        P, page = mask.prefix, self.config.page
        if self.always_exact(P):
            return ops.selected_attention(q_BNHD, k_BGSD, v_BGSD, mask)
        low_BGCD, high_BGCD = self._page_bounds(layer, k_BGSD, P // page)
        likely_BGC = _likely(q_BNHD[:, : mask.live_queries], low_BGCD[:, :, :-1], high_BGCD[:, :, :-1])
        # of the budget's pages one is the last complete page, and one pays for the incomplete page
        best_BGC = largest(likely_BGC, 2 * self.config.size // page - 2)
        recent = (P // page - 1) * page
        return attention_over_picked(q_BNHD, k_BGSD, v_BGSD, chunk_slots(best_BGC, page), recent, mask, ops)

    def truncate(self, length: int) -> None:
        pages = length // self.config.page
        self._bounds = {
            layer: (low_BGCD[:, :, :pages], high_BGCD[:, :, :pages])
            for layer, (low_BGCD, high_BGCD) in self._bounds.items()
            if pages
        }

    def _page_bounds(self, layer: int, k_BGSD: torch.Tensor, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Least and largest value of each element over the keys of every complete page, both [B, G, pages, D].

        A committed key never changes, so that only pages completed since the last call are looked at.
        """
        page = self.config.page
        known = self._bounds.get(layer)
        done = known[0].shape[2] if known else 0
        if done < pages:
            B, G, _, D = k_BGSD.shape
            new_BGCpD = k_BGSD[:, :, done * page : pages * page].reshape(B, G, pages - done, page, D)
            fresh = new_BGCpD.amin(3), new_BGCpD.amax(3)
            self._bounds[layer] = (
                (torch.cat((known[0], fresh[0]), 2), torch.cat((known[1], fresh[1]), 2)) if known else fresh
            )
        return self._bounds[layer]


def _likely(q_BNHD: torch.Tensor, low_BGCD: torch.Tensor, high_BGCD: torch.Tensor) -> torch.Tensor:
    """Attention that each page would get if its keys scored as high as its bound allows, summed: [B, G, C]."""
    B, N, H, D = q_BNHD.shape
    G = low_BGCD.shape[1]
    q_BGQD = q_BNHD.float().transpose(1, 2).reshape(B, G, (H // G) * N, D)
    # max(q·min, q·max) element by element: the maximum where q is positive, the minimum where it is negative
    bound_BGQC = q_BGQD.clamp_min(0) @ high_BGCD.float().mT + q_BGQD.clamp_max(0) @ low_BGCD.float().mT
    return torch.softmax(bound_BGQC * D**-0.5, dim=-1).sum(2)
