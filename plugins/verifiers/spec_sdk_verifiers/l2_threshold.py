"""The attention level's verifier: relative error of the predicted attention (ALSpec, §3.2).

Legend: B batch, N queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier, relative_error
from spec_sdk.errors import UserError


@dataclass
class L2ThresholdConfig:
    """``threshold``: λ, the largest accepted error relative to the exact attention. 0 accepts nothing."""

    threshold: float = 0.1


class L2Threshold(AttentionVerifier):
    """Accepts a prediction Â if ‖Â − A‖₂ < λ‖A‖₂ for every query: all heads together, before the output projection."""

    name = "l2_threshold"
    Config = L2ThresholdConfig
    config: L2ThresholdConfig

    def __init__(self, config: L2ThresholdConfig) -> None:
        if not config.threshold >= 0:
            raise UserError(f"attention_verifier.threshold: {config.threshold} must be 0 or more")
        super().__init__(config)

    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        error_BN = relative_error(difference_sq_BN, norm_sq_BN)
        return AttentionVerdict((error_BN < self.config.threshold).all(), error_BN)
