"""Attention sink prediction: the first and the last cached tokens stand for all (ALSpec, §3.2, after StreamingLLM).

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import Announce, PartialAttention, Predictor, SpeculativeAttention, option
from spec_sdk.errors import UserError
from spec_sdk.ops import Ends, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.plugin import not_inherited

SIZE = 128


@dataclass
class AttentionSinkConfig:
    """Options of ``predictor=attention_sink``; contexts up to ``first + last`` tokens are predicted exactly."""

    size: int = option(SIZE, "tokens taken from each end of the prefix (S)", minimum=1)
    first: int | None = option(None, "tokens taken from its start, if not size", minimum=0, means={None: "size"})
    last: int | None = option(None, "tokens taken from its end, if not size", minimum=1, means={None: "size"})

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.size not in (SIZE, self.first, self.last):
            raise UserError(
                f"predictor.size: {self.size} contradicts predictor.first={self.first} and predictor.last={self.last}, "
                "which say what is taken from both ends; leave size out"
            )

    @property
    def ends(self) -> Ends:
        """What is taken from either end."""
        return Ends(
            self.size if self.first is None else self.first,
            self.size if self.last is None else self.last,
        )


class AttentionSink(Predictor):
    """Attention over the first and the last committed tokens and a query's own tree ancestors."""

    name = "attention_sink"
    aliases = ("sink",)
    Config = AttentionSinkConfig
    config: AttentionSinkConfig

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # it would go on predicting by both ends
        not_inherited(cls, "speculate", Predictor.speculate, ["predict"])

    @property
    def ends(self) -> Ends:
        return self.config.ends

    def always_exact(self, prefix: int) -> bool:
        return prefix <= self.config.ends.keys

    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        return ops.sink_attention(q_BNHD, k_BGSD, v_BGSD, mask, self.config.ends)

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
        return ops.speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, self.config.ends, announce)
