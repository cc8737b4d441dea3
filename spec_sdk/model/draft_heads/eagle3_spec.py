"""EAGLE-3 heads as files say them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from spec_sdk.model.draft_heads.eagle3 import Eagle3Head, Eagle3Variant
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts
from spec_sdk.model.draft_heads.head_spec import DraftHeadSpec, layer_shapes
from spec_sdk.model.draft_heads.head_weights import LAYER, HeadWeights
from spec_sdk.model.draft_heads.tapped_layers import PublishedTaps
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops.linear import Projection

FcNorm = Literal["none", "together", "each"]


@dataclass(frozen=True)
class Eagle3Spec(DraftHeadSpec):
    """``published_taps``: the target layers that it reads. ``fc_norm``: what is normalized
    before ``fc``: nothing, all tapped states together, or each by itself. ``borrows_head``: the output rows of its
    tokens are the target's.
    """

    method: ClassVar[str] = "eagle3"
    published_taps: PublishedTaps = PublishedTaps()
    fc_norm: FcNorm = "none"
    variant: Eagle3Variant = Eagle3Variant()
    borrows_head: bool = False

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return self.published_taps.of_target(target_layers)

    def with_taps(self, taps: tuple[int, ...]) -> DraftHeadSpec:
        return replace(self, published_taps=PublishedTaps(taps))

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V, W, S = self.config.hidden_size, self.config.vocab_size, self.draft_vocabulary, self.target_hidden_size
        required: dict[str, Shape] = {
            "fc.weight": (M, taps * S),
            f"{LAYER}.hidden_norm.weight": (M,),
            f"{LAYER}.input_layernorm.weight": (M,),
            **layer_shapes(self.config, 2 * M),
            "norm.weight": (M,),
        }
        optional: dict[str, Shape] = {"d2t": (W,), "t2d": (V,), "lm_head.weight": (W, M), "embed_tokens.weight": (V, M)}
        if self.fc_norm == "together":
            required["input_norm.weight"] = (taps * S,)
        elif self.fc_norm == "each":
            required |= {f"fc_norm.{i}.weight": (S,) for i in range(taps)}
        # what the target cannot lend
        needed = [
            ("d2t", V != W),
            ("lm_head.weight", (V != W or M != S) and not self.borrows_head),
            ("embed_tokens.weight", M != S),
        ]
        required |= {name: optional.pop(name) for name, wanted in needed if wanted}
        return required, optional

    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        return Eagle3Head(*self.eagle3_parts(weights, parts))

    def eagle3_parts(
        self, weights: HeadWeights, parts: HeadParts
    ) -> tuple[HeadParts, Projection, tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor, Eagle3Variant]:
        """What an :class:`Eagle3Head` is made of."""
        return (
            parts,
            weights.projection("fc"),
            self._fc_norms(weights, len(parts.taps)),
            weights.read(f"{LAYER}.input_layernorm.weight"),
            weights.read("norm.weight"),
            self.variant,
        )

    def _fc_norms(self, weights: HeadWeights, taps: int) -> tuple[torch.Tensor, ...]:
        if self.fc_norm == "together":
            return (weights.read("input_norm.weight"),)
        return tuple(weights.read(f"fc_norm.{i}.weight") for i in range(taps if self.fc_norm == "each" else 0))
