"""EAGLE-1 and EAGLE-2 heads as files say them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.eagle1 import Eagle1Head
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts
from spec_sdk.model.draft_heads.head_spec import DraftHeadSpec, layer_shapes
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape


@dataclass(frozen=True)
class Eagle1Spec(DraftHeadSpec):
    """``fc_bias``: the layer that joins embedding and feature has a bias."""

    method: ClassVar[str] = "eagle"
    fc_bias: bool = False

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return (target_layers,)

    def with_taps(self, taps: tuple[int, ...]) -> DraftHeadSpec:
        raise UserError("drafter.target_layers: an EAGLE-1 or EAGLE-2 head reads the last layer; leave the option out")

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V = self.config.hidden_size, self.config.vocab_size
        required = {"fc.weight": (M, 2 * M), **layer_shapes(self.config, M)}
        if self.fc_bias:
            required["fc.bias"] = (M,)
        return required, {"embed_tokens.weight": (V, M), "lm_head.weight": (V, M)}

    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        return Eagle1Head(parts, weights.projection("fc"), target)
