"""The self-tests of the kernels in Triton: on a GPU, or in Triton's interpreter in float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.diagnosis.self_tests import Outcome, carried_out, ops_tests, overrides
from spec_sdk.ops import PLAIN, AttentionSpec
from spec_sdk_backends.triton_ops import TritonOps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OWN = ("cached_attention", "tree_attention", "speculative_attention")


def outcome_of(ops: TritonOps, operation: str) -> Outcome:
    [test] = ops_tests(ops, DEVICE, [torch.float32], [operation])
    return carried_out(test)


@pytest.mark.parametrize("operation", OWN)
def test_the_kernels_are_sound(operation: str) -> None:
    found = outcome_of(TritonOps(), operation)
    assert found.verdict == "ok" and overrides(TritonOps(), operation), found


class WiderWindow(TritonOps):
    def cached_attention(self, q_gBNHD: Any, cache: Any, first: int, spec: AttentionSpec = PLAIN) -> torch.Tensor:
        if spec.window is not None:
            spec = dataclasses.replace(spec, window=spec.window + 1)
        return super().cached_attention(q_gBNHD, cache, first, spec)


def test_a_wrong_one_is_found() -> None:
    assert outcome_of(WiderWindow(), "cached_attention").verdict == "wrong"
