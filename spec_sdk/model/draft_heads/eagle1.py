"""The head of EAGLE and EAGLE-2 (Li et al. 2024, §4.1; HASS trains the same module otherwise).

A linear layer joins the token's embedding and the target's feature, its last hidden state after the final norm. One
decoder layer without an input norm follows. What leaves it is both the next feature and what the target's output head
reads.

Legend: B requests, N rows of a request, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts, fed_features
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


class Eagle1Head(DraftHead):
    """``fc`` is 2M → M, of embedding and feature, in this order."""

    def __init__(self, parts: HeadParts, fc: Projection, target: TargetEnds) -> None:
        super().__init__(parts, target.final_norm_M)
        self.fc = fc
        self._target = target

    @property
    def projections(self) -> list[Projection]:
        return [self.fc, *super().projections]

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        (last_NM,) = self.tapped(hidden)
        return self._target.final_norm(last_NM)

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """What enters the layer [B, N, M], and what the pass works on."""
        embedded_BNM, work = super().forward_pass(inputs, cache, ops, taps)
        return self.fc(torch.cat((embedded_BNM, fed_features(inputs)), dim=-1)), work

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        """A logit for each row of the output head. The layer's output is a feature, so it is normalized already."""
        return output_head(h_BNM)
