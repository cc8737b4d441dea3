"""The most probable tokens that the kernel finds are torch's (legend: N rows, V logits of a row, K kept of each)."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.ops import Ops
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.top import MOST_KEPT, top_log_probabilities
from tests.support.threads import threads

SIZES = [(1, 1), (3, 7), (2, 64), (1, 4095), (4, 4097), (8, 8192), (2, 49_152)]


def logits(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return (5 * torch.randn(rows, columns, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_log_probabilities_are_those_of_torch(rows: int, columns: int, dtype: torch.dtype) -> None:
    logits_NV = logits(rows, columns, dtype)
    for count in (1, 4, MOST_KEPT):
        logprob_NK, place_NK = NativeOps(CpuOps()).top_log_probabilities(logits_NV, count)
        expected_NK, _ = Ops().top_log_probabilities(logits_NV, count)
        assert logprob_NK.shape == place_NK.shape == (rows, min(count, columns)) and place_NK.dtype == torch.int64
        torch.testing.assert_close(logprob_NK, expected_NK, atol=2e-5, rtol=2e-6)
        torch.testing.assert_close(logits_NV.double().log_softmax(-1).gather(1, place_NK).float(), logprob_NK)
        # of equal logits the lowest place comes first: a stable sort says which
        by_value = logits_NV.float().sort(dim=-1, descending=True, stable=True).indices
        assert torch.equal(place_NK, by_value[:, : place_NK.shape[1]])


def test_impossible_tokens_come_last_and_what_is_no_number_comes_first() -> None:
    logits_NV = torch.full((3, 5000), -torch.inf)
    logits_NV[0, 4500], logits_NV[0, 3] = 1.0, 2.0
    logits_NV[1, 4999] = torch.nan
    logprob_NK, place_NK = NativeOps(CpuOps()).top_log_probabilities(logits_NV, 3)
    expected_NK = torch.tensor([2.0, 1.0, -torch.inf]).log_softmax(-1)
    torch.testing.assert_close(logprob_NK[0], expected_NK)
    assert place_NK.tolist()[0][:2] == [3, 4500] and place_NK[1, 0] == 4999
    assert logprob_NK[1:].isnan().all()


def test_a_row_does_not_depend_on_those_beside_it_nor_on_threads() -> None:
    logits_NV = logits(8, 8300, torch.bfloat16)
    whole = NativeOps(CpuOps()).top_log_probabilities(logits_NV, 5)
    with threads(1):
        # rows that lie apart
        parts = [NativeOps(CpuOps()).top_log_probabilities(logits_NV[row::8], 5) for row in range(8)]
    for found, alone in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(found, torch.cat(alone))


def test_what_the_kernel_does_not_take() -> None:
    assert top_log_probabilities(torch.zeros(2, 9).double(), 3) is None
    assert top_log_probabilities(torch.zeros(9, 2).T, 3) is None
    assert top_log_probabilities(torch.zeros(1, 999), MOST_KEPT + 1) is None
    logprob_NK, _ = NativeOps(CpuOps()).top_log_probabilities(torch.zeros(2, 9).double(), 3)
    torch.testing.assert_close(logprob_NK, torch.full((2, 3), 1 / 9).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [5, 16, 576])
def test_a_norm_is_that_of_torch(size: int, dtype: torch.dtype) -> None:
    x, gain_M = logits(4, size, dtype), logits(1, size, dtype)[0]
    with torch.no_grad():
        found = NativeOps(CpuOps()).rms_norm(x[None], gain_M, 1e-5)
    exact = Ops().rms_norm(x[None].double(), gain_M.double(), 1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)
