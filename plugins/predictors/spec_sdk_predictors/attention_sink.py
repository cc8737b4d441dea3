"""Attention sink prediction: the first and the last cached tokens stand for all (ALSpec, §3.2, after StreamingLLM).

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import Announce, PartialAttention, SpeculativeAttention
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk_predictors.budget import BudgetedPredictor


@dataclass
class AttentionSinkConfig:
    """``size``: tokens S taken from each end of the committed prefix."""

    size: int = 128


class AttentionSink(BudgetedPredictor):
    """Attention over the first ``size`` and the last ``size`` committed tokens and a query's own tree ancestors."""

    name = "attention_sink"
    aliases = ("sink",)
    Config = AttentionSinkConfig
    config: AttentionSinkConfig

    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        return ops.sink_attention(q_BNHD, k_BGSD, v_BGSD, mask, self.config.size)

    def speculate(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """Both ends are read first, and their attention is reused for the exact one (ALSpec, §4.1)."""
        return ops.speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, self.config.size, announce)
