"""What a rejection leaves, and which draws are accepted: by hand, in float64. Rows as long as several pieces, too.

Legend: V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.ops import accepts, residual, without
from spec_sdk.ops.inversion import draw, next_uniform
from spec_sdk.ops.pieces import PIECE
from spec_sdk.ops.residual import remove

SIZES = (2, 12, 300, 2 * PIECE + 7)


def distributions(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    p_V, q_V = torch.randn((2, size), generator=torch.Generator().manual_seed(size)).mul_(2).softmax(-1)
    return p_V, q_V


@pytest.mark.parametrize("size", SIZES)
def test_residual(size: int) -> None:
    p_V, q_V = distributions(size)
    p64_V, q64_V = p_V.double(), q_V.double()
    expected_V = (p64_V - q64_V).clamp_min(0)
    expected_V /= expected_V.sum()
    torch.testing.assert_close(residual(p_V, q_V).double(), expected_V, atol=1e-6, rtol=1e-5)
    assert torch.equal(p_V.double(), p64_V) and torch.equal(q_V.double(), q64_V), "its inputs are not written to"
    out_V = torch.empty_like(p_V)
    assert residual(p_V, q_V, out_V).data_ptr() == out_V.data_ptr()
    # nothing is left: the probability of getting here is rounding, and some distribution is needed all the same
    assert residual(p_V, p_V) is p_V and residual(p_V, 2 * p_V, out_V) is p_V


@pytest.mark.parametrize("size", SIZES)
def test_without(size: int) -> None:
    p_V, _ = distributions(size)
    before_V, token = p_V.clone(), int(p_V.argmax())
    expected_V = p_V.double()
    expected_V[token] = 0
    expected_V /= expected_V.sum()
    torch.testing.assert_close(without(p_V, token).double(), expected_V, atol=1e-6, rtol=1e-5)
    assert torch.equal(p_V, before_V), "its input is not written to"
    remove(p_V, token, normalised=False)
    before_V[token] = 0
    assert torch.equal(p_V, before_V)
    only_V = torch.zeros(size)
    only_V[token] = 1
    assert torch.equal(without(only_V, token), only_V)
    remove(only_V, token, normalised=False)
    assert float(only_V[token]) == 1


@pytest.mark.parametrize(("p", "q"), [(0.2, 0.5), (0.31, 1.0), (0.5, 0.2), (0.0, 0.4), (1.0, 1.0)])
def test_accepted_with_min_1_p_over_q(p: float, q: float) -> None:
    count = 100_000
    assert sum(accepts(p, q, i / count) for i in range(count)) == pytest.approx(count * min(1, p / q), abs=1)


def test_a_number_or_the_generator_s_next() -> None:
    numbers = torch.rand(3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).tolist()
    generator = torch.Generator().manual_seed(4)
    assert [next_uniform(generator) for _ in range(3)] == numbers and next_uniform(0.25) == 0.25
    assert [draw(torch.tensor([0.25, 0.0, 0.5]), uniform) for uniform in (0.0, 0.33, 0.34, 0.999)] == [0, 0, 2, 2]
