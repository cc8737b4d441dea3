"""Heavy-hitter prediction (H2O: Zhang et al., NeurIPS 2023, arXiv:2306.14048).

Keys that have received much attention so far are likely to receive more. Unlike H2O's own cache, none is ever evicted:
the exact pass sees them all, so that a key may become a heavy hitter late.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, P prefix length, C chunks of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.contracts import PartialAttention, option
from spec_sdk.errors import UserError
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk_predictors.budget import BudgetedPredictor, attention_over_picked, chunk_slots, largest


@dataclass
class H2OConfig:
    """Options of ``predictor=h2o``."""

    size: int = option(
        128, "heavy hitters, and as many of the last keys; contexts up to twice this are predicted exactly", minimum=1
    )
    chunk: int = option(
        1, "keys counted and picked together; more is cheaper to count", minimum=1, means={1: "H2O's own"}
    )

    def __post_init__(self) -> None:
        if self.chunk > self.size:
            raise UserError(f"predictor.chunk: {self.chunk} must be at most predictor.size, {self.size}")


class H2O(BudgetedPredictor):
    """Attention over the keys that got most attention so far, the last ``size`` keys and a query's own tree ancestors.

    A chunk's count is the share of attention that it got from every committed query since the prompt, summed per KV
    head over its query heads; shares are of the attention to committed keys. It is learned from the exact passes alone:
    before the first one nothing is known, and the first keys of the prompt are taken (attention sink's guess). Queries
    of a tree that were not accepted do not count. A layer that never speculates learns nothing, nor needs to.
    """

    name = "h2o"
    aliases = ("heavy_hitter",)
    Config = H2OConfig
    config: H2OConfig

    def __init__(self, config: H2OConfig) -> None:
        super().__init__(config)
        self.chunk = config.chunk
        self._mass: dict[int, torch.Tensor] = {}
        self._pending: dict[int, torch.Tensor] = {}

    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        P, size, chunk = mask.prefix, self.config.size, self.chunk
        if self.always_exact(P):
            return ops.selected_attention(q_BNHD, k_BGSD, v_BGSD, mask)
        # chunks that reach into the last `size` keys are no candidates: what they have before those is left out,
        # by starting the recent keys at the next chunk
        candidates = -(-(P - size) // chunk)
        mass_BHC = self._mass.get(layer)
        if mass_BHC is None:
            mass_BGC = torch.zeros((*k_BGSD.shape[:2], candidates), device=k_BGSD.device)
        else:
            B, G = k_BGSD.shape[:2]
            mass_BGC = mass_BHC.view(B, G, -1, mass_BHC.shape[2]).sum(2)
        mass_BGC = F.pad(mass_BGC[:, :, :candidates], (0, max(0, candidates - mass_BGC.shape[2])))
        heavy_BGK = chunk_slots(largest(mass_BGC, size // chunk), chunk)
        return attention_over_picked(q_BNHD, k_BGSD, v_BGSD, heavy_BGK, candidates * chunk, mask, ops)

    def learn(self, layer: int, chunk_lse_BNHC: torch.Tensor) -> None:
        self._pending[layer] = chunk_lse_BNHC

    def commit(self, path: Sequence[int]) -> None:
        for layer, lse_BNHC in self._pending.items():
            share_BHC = torch.softmax(lse_BNHC[:, list(path)], dim=-1).sum(1)
            mass_BHC = self._mass.get(layer)
            if mass_BHC is not None:
                share_BHC = share_BHC + F.pad(mass_BHC, (0, share_BHC.shape[2] - mass_BHC.shape[2]))
            self._mass[layer] = share_BHC
        self._pending.clear()

    def truncate(self, length: int) -> None:
        self._pending.clear()
        chunks = -(-length // self.chunk)
        self._mass = {layer: mass_BHC[:, :, :chunks] for layer, mass_BHC in self._mass.items() if chunks}
