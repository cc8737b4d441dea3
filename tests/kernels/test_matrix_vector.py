"""Products of a matrix with one row, against float64, with what stands before and behind them.

Legend: I inputs, O outputs.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from spec_sdk.ops.linear import Projection
from spec_sdk_backends.matrix_vector import MatrixVectorTile, is_dense, matrix_vector

EPSILON = 1e-5
TILES = (MatrixVectorTile(4, 64, 4), MatrixVectorTile(2, 32, 2), MatrixVectorTile(8, 16, 4))
"""Of more, as many, and fewer inputs than there are: with a last block of all and of some."""


def numbers(*shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 16), (40, 13)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
def test_a_product(
    activation: str | None,
    normed: bool,
    biased: bool,
    inputs: int,
    outputs: int,
    tile: MatrixVectorTile,
    device: torch.device,
) -> None:
    rows = outputs if activation is None else 2 * outputs
    weight_OI, bias_O = (numbers(*shape, seed=len(shape), device=device) for shape in ((rows, inputs), (rows,)))
    x_11I, gain_I = (3 * numbers(*shape, seed=7, device=device) for shape in ((1, 1, inputs), (inputs,)))
    added_11O = numbers(1, 1, outputs, seed=9, device=device)
    projection = Projection(weight_OI, bias_O if biased else None)
    x = x_11I.double()
    if normed:
        x = x * (x.square().mean() + EPSILON).rsqrt() * gain_I.double()
    y = F.linear(x, weight_OI.double(), bias_O.double() if biased else None)
    if activation is not None:
        gate, up = y.chunk(2, -1)
        y = up * (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh"))
    for added in (None, added_11O):
        out = matrix_vector(
            x_11I,
            projection,
            gain_I=gain_I if normed else None,
            epsilon=EPSILON,
            activation=activation,
            added_11O=added,
            tile=tile,
        )
        expected = y if added is None else y + added.double()
        torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (4096, 6144), (14336, 4096)])
def test_half_precision_one_after_the_other(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    """In the tiles of real shapes, captured; each product reads what the one before wrote, which may still run."""
    there = Projection(numbers(outputs, inputs, seed=1, device=device, dtype=dtype) / inputs**0.5)
    back = Projection(numbers(2 * inputs, outputs, seed=2, device=device, dtype=dtype) / outputs**0.5)
    gain_I = torch.ones(inputs, device=device, dtype=dtype)
    x_11I = numbers(1, 1, inputs, seed=3, device=device, dtype=dtype)

    def chained() -> torch.Tensor:
        h_11I = x_11I
        for _ in range(8):
            y_11O = matrix_vector(h_11I, there, gain_I=gain_I, epsilon=EPSILON)
            h_11I = matrix_vector(y_11O, back, activation="silu", added_11O=h_11I)
        return h_11I

    chained()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_11I = chained()
    for seed in range(4, 8):
        x_11I.copy_(numbers(1, 1, inputs, seed=seed, device=device, dtype=dtype))
        expected = x_11I.double()
        for _ in range(8):
            normed = expected * (expected.square().mean() + EPSILON).rsqrt()
            gate, up = F.linear(F.linear(normed, there.weight_OI.double()), back.weight_OI.double()).chunk(2, -1)
            expected = expected + F.silu(gate) * up
        graph.replay()
        assert (out_11I.double() - expected).norm() < 2e-2 * expected.norm()


def test_what_is_multiplied_otherwise() -> None:
    class Packed(Projection):
        pass

    weight_OI = torch.zeros(2, 3)
    assert is_dense(Projection(weight_OI)) and not is_dense(Packed(weight_OI))
    assert not is_dense(Projection(weight_OI.double()))
