"""Fixed layers instead of a verdict: the static approximation that ALSpec compares itself with (§2, Figs. 2 and 3b).

Legend: B batch, N queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier, Space, option, relative_error
from spec_sdk.errors import UserError
from spec_sdk_verifiers.attention_options import check_layers, space_option


@dataclass
class StaticConfig:
    """Options of ``attention_verifier=static``."""

    layers: list[int] = option(
        [], "layers (from 0) that always take the prediction, at least one; the others never predict", minimum=0
    )
    space: str = space_option("the reported error")


class Static(AttentionVerifier):
    """Accepts every prediction of ``layers`` without looking at it, and makes none elsewhere. The error is reported.

    Nothing bounds the error: it is a baseline, not a way to keep quality.
    """

    name = "static"
    Config = StaticConfig
    config: StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        if not config.layers:
            raise UserError(
                "attention_verifier.layers: name the layers that take the prediction: attention_verifier.layers=[20,21]"
            )
        self.space = cast(Space, config.space)
        self._layers = frozenset(config.layers)

    def check(self, layers: int) -> None:
        check_layers("layers", self.config.layers, layers)

    def speculates(self, layer: int) -> bool:
        return layer in self._layers

    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        hit_B = torch.ones(norm_sq_BN.shape[0], dtype=torch.bool, device=norm_sq_BN.device)
        return AttentionVerdict(hit_B, relative_error(difference_sq_BN, norm_sq_BN))
