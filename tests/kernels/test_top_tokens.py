"""The most probable tokens of each row by kernels: those that float64 finds.

Legend: K rows, V vocabulary, W tokens that are looked for.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.ops import Ops
from spec_sdk_backends import top_tokens
from spec_sdk_backends.greedy_choice import PART
from spec_sdk_backends.top_tokens import MOST_WANTED
from spec_sdk_backends.triton_ops import TritonOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 5, PART - 1, 2 * PART + 3])
@pytest.mark.parametrize("count", [1, 3, 4, MOST_WANTED])
def test_tokens_and_log_probabilities(count: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> None:
    """Of equal logits, which 16 bits have many of, the lowest place comes first."""
    numbers = torch.Generator().manual_seed(vocabulary + count)
    logits_KV = (3 * torch.randn((3, vocabulary), generator=numbers)).to(device, dtype)
    logprob_KW, place_KW = TritonOps().top_log_probabilities(logits_KV, count)
    wanted = min(count, vocabulary)
    assert logprob_KW.shape == place_KW.shape == (3, wanted)
    assert (logprob_KW.dtype, place_KW.dtype) == (torch.float32, torch.int64)
    assert logprob_KW.is_contiguous() and place_KW.is_contiguous()
    order_KV = torch.sort(logits_KV.double(), dim=-1, descending=True, stable=True).indices[:, :wanted]
    assert torch.equal(place_KW, order_KV)
    expected_KV = logits_KV.double().log_softmax(-1)
    torch.testing.assert_close(logprob_KW.double(), expected_KV.gather(-1, place_KW), atol=2e-5, rtol=1e-5)


def test_tokens_that_cannot_come_are_last_and_none_comes_twice(device: torch.device) -> None:
    """Rows with fewer usable tokens than are asked for, in one part and in another, as constraints leave them."""
    logits_KV = torch.full((2, PART + 6), float("-inf"), device=device)
    logits_KV[0, [PART + 1, 7]] = torch.tensor([2.0, 1.0], device=device)
    logits_KV[1, 3] = 0.5
    logprob_KW, place_KW = TritonOps().top_log_probabilities(logits_KV, 4)
    assert place_KW[:, :2].tolist() == [[PART + 1, 7], [3, 0]]
    assert all(len(set(places)) == 4 for places in place_KW.tolist())
    expected_KW, _ = Ops().top_log_probabilities(logits_KV, 4)
    torch.testing.assert_close(logprob_KW, expected_KW)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [2, PART + 1])
def test_unusable_rows(value: float, place: int, device: torch.device) -> None:
    logits_KV = torch.randn((3, PART + 4), generator=torch.Generator().manual_seed(0)).to(device)
    logits_KV[0, place] = value
    logits_KV[1] = float("-inf")
    logprob_KW, _ = TritonOps().top_log_probabilities(logits_KV, 2)
    assert logprob_KW[:2].isnan().all() and logprob_KW[2].isfinite().all()


def test_what_the_kernels_do_not_take(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens, other dtypes and no rows are the reference's; rows apart in memory are not."""
    logits_KV = torch.randn((4, 40), generator=torch.Generator().manual_seed(1)).to(device)
    for given, count in ((logits_KV, MOST_WANTED + 1), (logits_KV.double(), 2), (logits_KV[:0], 2)):
        assert not top_tokens.takes(given, count)
        found, expected = (ops.top_log_probabilities(given, count) for ops in (TritonOps(), Ops()))
        assert torch.equal(found[1], expected[1])
    found, expected = (ops.top_log_probabilities(logits_KV[::2], 3) for ops in (TritonOps(), Ops()))
    assert torch.equal(found[1], expected[1])
