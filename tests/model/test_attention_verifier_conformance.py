"""check_attention_verifier: it passes the installed ones, and names the fault of each faulty one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import AttentionVerdict
from spec_sdk.registry import Registry
from spec_sdk.testing import check_attention_verifier
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from spec_sdk_verifiers.static import Static, StaticConfig


@pytest.mark.parametrize(
    "verifier",
    [
        L2Threshold(L2ThresholdConfig()),
        L2Threshold(L2ThresholdConfig(threshold=0.5, layer_thresholds={1: 0.0}, never=[3], space="residual")),
        Static(StaticConfig(layers=[1, 2])),
    ],
    ids=lambda verifier: verifier.name,
)
def test_the_installed_attention_verifiers_conform(verifier: Any) -> None:
    check_attention_verifier(verifier)


def test_every_attention_verifier_of_ours_is_among_them() -> None:
    offers = Registry.discover().offers("attention_verifier")
    assert {offer.plugin for offer in offers if offer.package == "spec-sdk"} == {L2Threshold, Static}


class Faulty(L2Threshold):
    def __init__(self) -> None:
        super().__init__(L2ThresholdConfig())


class AnyRowWillDo(Faulty):
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        error_BN = super().verify(layer, difference_sq_BN, norm_sq_BN).error_BN
        return AttentionVerdict((error_BN < 0.1).any(-1), error_BN)


class OneVerdictForAll(Faulty):
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        verdict = super().verify(layer, difference_sq_BN, norm_sq_BN)
        return AttentionVerdict(verdict.hit_B.all().expand(verdict.hit_B.shape), verdict.error_BN)


class Waits(Faulty):
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        if float(difference_sq_BN.max()) == 0:
            return super().verify(layer, difference_sq_BN, norm_sq_BN)
        return super().verify(layer, difference_sq_BN, norm_sq_BN)


class ForgetsTheRoot(Faulty):
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        return AttentionVerdict((difference_sq_BN < norm_sq_BN).all(-1), difference_sq_BN / norm_sq_BN)


class WritesToTheNorms(Faulty):
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        return super().verify(layer, difference_sq_BN.div_(2), norm_sq_BN)


class Elsewhere(Faulty):
    space: Any = "logits"

    def __init__(self) -> None:
        super().__init__()
        self.space = "logits"


@pytest.mark.parametrize(
    ("verifier", "fault"),
    [
        (AnyRowWillDo, "hits with relative errors .*, though a row of it alone does not"),
        (OneVerdictForAll, "hits alone and misses beside the others"),
        (Waits, "its verdict waits for the device"),
        (ForgetsTheRoot, "its errors are off the relative error by"),
        (WritesToTheNorms, "verify wrote to the norms"),
        (Elsewhere, "space 'logits' is none of heads, residual"),
    ],
)
def test_a_faulty_attention_verifier_is_named(verifier: type[Faulty], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_attention_verifier(verifier())


def test_options_for_more_layers_than_the_target_has_are_told() -> None:
    with pytest.raises(AssertionError, match="it refuses a target of 4 layers: .*there is no layer 9"):
        check_attention_verifier(Static(StaticConfig(layers=[9])))
