"""The heads of Medusa (Cai et al. 2024, §2.1.1): one per position ahead, all of which read one state of the target.

The state is the target's last, after the final norm, at the position before the pending token. There the target's own
output head predicts the pending token; head i, counted from 0, predicts the token i + 1 behind it.

Legend: N states, M model dim of the target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops.linear import Projection


@dataclass(frozen=True)
class MedusaHead:
    """Residual blocks x + SiLU(W x + b), M → M, and the output head, M → V, that reads what they leave."""

    blocks: Sequence[Projection]
    output_head: Projection

    def __call__(self, h_NM: torch.Tensor) -> torch.Tensor:
        """Logits [N, V]."""
        for block in self.blocks:
            h_NM = h_NM + F.silu(block(h_NM))
        return self.output_head(h_NM)


class MedusaHeads:
    """Weights and arithmetic of all heads. They hold no state of a request, and need no cache."""

    def __init__(
        self,
        heads: Sequence[MedusaHead],
        taps: tuple[int, ...],
        target: TargetEnds,
        logit_scale: float,
        dtype: torch.dtype,
    ) -> None:
        self.heads, self.taps = heads, taps
        self._target, self._logit_scale, self._dtype = target, logit_scale, dtype

    @property
    def positions(self) -> int:
        """How many tokens ahead are predicted."""
        return len(self.heads)

    def keep_cache_in(self, form: str) -> None:
        """Nothing to do: they have no cache."""

    def logits(self, hidden: Mapping[int, torch.Tensor], positions: int) -> list[torch.Tensor]:
        """The logits [N, V] of the first ``positions`` tokens behind the pending one, from layer → states [N, M]."""
        (layer,) = self.taps
        h_NM = self._target.final_norm(hidden[layer].to(device=self._target.final_norm_M.device, dtype=self._dtype))
        return [head(h_NM) * self._logit_scale for head in self.heads[:positions]]
