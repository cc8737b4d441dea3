"""Attention sink prediction: the first and the last cached tokens stand for all (ALSpec, §3.2, after StreamingLLM).

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import PartialAttention, Predictor, SpeculativeAttention
from spec_sdk.errors import UserError
from spec_sdk.model.attention_mask import AttentionMask
from spec_sdk.ops import Ops


@dataclass
class AttentionSinkConfig:
    """``size``: tokens S taken from each end of the committed prefix."""

    size: int = 128


class AttentionSink(Predictor):
    """Attention over the first ``size`` and the last ``size`` committed tokens and a query's own tree ancestors."""

    name = "attention_sink"
    aliases = ("sink",)
    Config = AttentionSinkConfig
    config: AttentionSinkConfig

    def __init__(self, config: AttentionSinkConfig) -> None:
        if config.size < 1:
            raise UserError(f"predictor.size: {config.size} must be 1 token or more")
        super().__init__(config)

    def always_exact(self, prefix: int) -> bool:
        return prefix <= 2 * self.config.size

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
    ) -> SpeculativeAttention:
        """Both ends are read first, and their attention is reused for the exact one (ALSpec, §4.1)."""
        return ops.speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, self.config.size)
