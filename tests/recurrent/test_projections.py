"""Projections of several matrices compute what one matrix of all of them does."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import JoinedProjection, Projection, ProjectionOfParts, SummedProjection


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def check(made: ProjectionOfParts, whole_OI: torch.Tensor) -> None:
    x_BNI = weights(2, 3, made.inputs)
    assert (made.outputs, made.inputs) == tuple(whole_OI.shape) and torch.equal(made.weight_OI, whole_OI)
    assert made.nbytes == whole_OI.numel() * 8
    torch.testing.assert_close(made(x_BNI), F.linear(x_BNI, whole_OI))


def test_outputs_side_by_side() -> None:
    a_OI, b_OI = weights(4, 6), weights(5, 6)
    check(JoinedProjection([Projection(a_OI), Projection(b_OI)]), torch.cat((a_OI, b_OI)))


def test_a_sum_over_inputs_side_by_side() -> None:
    a_OI, b_OI, c_OI = weights(4, 6), weights(4, 3), weights(4, 1)
    made = SummedProjection([Projection(a_OI), Projection(b_OI), Projection(c_OI)])
    check(made, torch.cat((a_OI, b_OI, c_OI), 1))
    assert made.holds(b_OI) and not made.holds(b_OI.clone())
