"""What speculative attention is to give: prediction, exact result and norms, in float64 by dense masks.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from spec_sdk.contracts import SpeculativeAttention
from spec_sdk.ops import Ends
from tests.kernels.dense_attention import TOLERANCE, Case, dense_attention, relative_error


class Expected(NamedTuple):
    """Float64."""

    predicted_BNHD: torch.Tensor
    exact_BNHD: torch.Tensor
    difference_sq_BN: torch.Tensor
    norm_sq_BN: torch.Tensor


def expect(it: Case, visible_NS: torch.Tensor, prefix: int, size: int | Ends) -> Expected:
    """Both outputs by dense masks: the prediction's is the exact one's without the keys in the middle."""
    window_NS = visible_NS.clone()
    first, last = Ends.of(size)
    if prefix > first + last:
        window_NS[:, first : prefix - last] = False
    q_BNHD, k_BGSD, v_BGSD = (x.cpu() for x in (it.q_BNHD, it.k_BGSD, it.v_BGSD))
    predicted = dense_attention(q_BNHD, k_BGSD, v_BGSD, window_NS)
    exact = dense_attention(q_BNHD, k_BGSD, v_BGSD, visible_NS)
    return Expected(predicted, exact, (predicted - exact).square().sum((2, 3)), exact.square().sum((2, 3)))


def check(given: SpeculativeAttention, expected: Expected, tolerance: float = TOLERANCE) -> None:
    """All four fields; the norms row by row."""
    assert relative_error(given.predicted_BNHD, expected.predicted_BNHD) < tolerance
    assert relative_error(given.exact_BNHD, expected.exact_BNHD) < tolerance
    assert given.difference_sq_BN.dtype == given.norm_sq_BN.dtype == torch.float32
    torch.testing.assert_close(given.norm_sq_BN.double().cpu(), expected.norm_sq_BN, rtol=tolerance, atol=0)
    torch.testing.assert_close(given.difference_sq_BN.double().cpu(), expected.difference_sq_BN, rtol=tolerance, atol=0)
    if not expected.difference_sq_BN.any():
        assert torch.equal(given.predicted_BNHD, given.exact_BNHD)
