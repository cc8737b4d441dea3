"""The attention level's verifier: relative error of the predicted attention (ALSpec, §3.2).

Legend: B batch, N queries, H query heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier
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

    def verify(self, layer: int, predicted_BNHD: torch.Tensor, exact_BNHD: torch.Tensor) -> AttentionVerdict:
        exact = exact_BNHD.float().flatten(2)
        difference_BN = torch.linalg.vector_norm(predicted_BNHD.float().flatten(2) - exact, dim=-1)
        norm_BN = torch.linalg.vector_norm(exact, dim=-1)
        hit = bool((difference_BN < self.config.threshold * norm_BN).all())
        return AttentionVerdict(hit, difference_BN / norm_BN.clamp_min(torch.finfo(torch.float32).tiny))
