"""The attention level's verifier: relative error of the predicted attention (ALSpec, §3.2).

Legend: B batch, N queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier, Space, option, relative_error
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk_verifiers.attention_options import check_layers, space_option


@dataclass
class L2ThresholdConfig:
    """Options of ``attention_verifier=l2_threshold``."""

    threshold: float = option(
        0.1,
        "λ: accept a prediction whose error is below this share of the exact attention's norm",
        minimum=0,
        means={0: "nothing is accepted"},
    )
    layer_thresholds: Any = option(
        None, "other thresholds for some layers, {0: 0.05, 29: 0.2}, or a list of one per layer"
    )
    never: list[int] = option([], "layers (from 0) that never speculate: neither predicted nor counted", minimum=0)
    space: str = space_option("the error")


class L2Threshold(AttentionVerifier):
    """Accepts a prediction Â if ‖Â − A‖₂ < λ‖A‖₂ for every query, all heads of a query together."""

    name = "l2_threshold"
    Config = L2ThresholdConfig
    config: L2ThresholdConfig

    def __init__(self, config: L2ThresholdConfig) -> None:
        super().__init__(config)
        self.space = cast(Space, config.space)
        self._never = frozenset(config.never)
        self._thresholds = _by_layer(config.layer_thresholds)

    def check(self, layers: int) -> None:
        given = self.config.layer_thresholds
        if isinstance(given, list) and len(given) != layers:
            raise UserError(
                f"attention_verifier.layer_thresholds: {counted(len(given), 'threshold')}, but the target has "
                f"{layers} layers; give one for each, or {{layer: threshold}} for some"
            )
        check_layers("layer_thresholds", self._thresholds, layers)
        check_layers("never", self.config.never, layers)

    def speculates(self, layer: int) -> bool:
        return layer not in self._never

    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        error_BN = relative_error(difference_sq_BN, norm_sq_BN)
        return AttentionVerdict((error_BN < self._thresholds.get(layer, self.config.threshold)).all(-1), error_BN)


def _by_layer(given: Any) -> dict[int, float]:
    """The option ``layer_thresholds`` as {layer: λ}. Raises UserError for anything else."""
    pairs = given.items() if isinstance(given, Mapping) else enumerate(given) if isinstance(given, list) else ()
    thresholds = {}
    for layer, threshold in pairs:
        if not isinstance(layer, int) or isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise UserError(
                f"attention_verifier.layer_thresholds: {layer!r}: {threshold!r} is not a layer's number and a threshold"
            )
        if not threshold >= 0:
            raise UserError(f"attention_verifier.layer_thresholds.{layer}: {threshold} must be 0 or more")
        thresholds[layer] = float(threshold)
    if given is not None and not isinstance(given, Mapping | list):
        raise UserError(f"attention_verifier.layer_thresholds: {given!r} must be {{layer: threshold}} or a list")
    return thresholds
