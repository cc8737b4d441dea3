"""P-EAGLE heads as files say them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts
from spec_sdk.model.draft_heads.head_spec import layer_shapes
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.draft_heads.peagle import PEagleHead
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape

MASK_HIDDEN = "mask_hidden"


@dataclass(frozen=True)
class PEagleSpec(Eagle3Spec):
    """``mask_axes``: of the stored ``mask_hidden``, all but the last of which are 1. ``drafts``: tokens that it was
    trained to draft, if the files say it.
    """

    method: ClassVar[str] = "peagle"
    mask_token: int = 0
    mask_axes: int = 1
    drafts: int | None = None

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        required, optional = super().shapes(taps)
        M = self.config.hidden_size
        required = {**required, MASK_HIDDEN: (*[1] * (self.mask_axes - 1), taps * self.target_hidden_size)}
        for layer in self._later_layers:
            required |= {f"{layer}.input_layernorm.weight": (M,), **layer_shapes(self.config, M, layer)}
        return required, optional

    def blocks(self, weights: HeadWeights) -> tuple[BlockWeights, ...]:
        later = [weights.block(weights.read(f"{layer}.input_layernorm.weight"), layer) for layer in self._later_layers]
        return (*super().blocks(weights), *later)

    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        return PEagleHead(
            *self.eagle3_parts(weights, parts),
            mask_token=self.mask_token,
            mask_KS=weights.read(MASK_HIDDEN).view(len(parts.taps), -1),
            drafts=self.drafts,
        )

    @property
    def _later_layers(self) -> list[str]:
        return [f"layers.{i}" for i in range(1, self.config.num_layers)]
