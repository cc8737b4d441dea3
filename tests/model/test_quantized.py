"""Matrices in few bits: their parts, how they are made from floats, products and look-ups.

Legend: I inputs, O outputs, V vocabulary, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch

from spec_sdk.model.gguf_blocks import LAYOUTS, codes_of, offsets_of, scales_of
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.linear import SeparateProjections
from spec_sdk.ops.quantized import BITS, QuantizedMatrix
from spec_sdk.ops.quantized_linear import QuantizedProjection, expanded_linear
from spec_sdk.ops.quantizing import quantize

ROUNDED_FACTORS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Kinds whose scales are products, and where their blocks have the float16 that those are made of."""
STORED_FACTORS = [kind for kind in LAYOUTS if kind not in ROUNDED_FACTORS]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Weights whose groups differ much in size, one of them zero."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=rng) * torch.logspace(-6, 2, shape[0])[:, None]
    values[0, :32] = 0
    return values


def stored(weight_OI: torch.Tensor, kind: str) -> np.ndarray:
    """Rows of blocks as llama.cpp stores them [O, bytes]."""
    made: np.ndarray = gguf.quants.quantize(weight_OI.numpy(), gguf.GGMLQuantizationType[kind])
    return made


def matrix_of(blocks: np.ndarray, kind: str) -> QuantizedMatrix:
    codes = torch.from_numpy(codes_of(blocks, kind).copy())
    offsets = offsets_of(blocks, kind)
    scale = torch.from_numpy(scales_of(blocks, kind))
    return QuantizedMatrix(
        codes.view(torch.int8) if LAYOUTS[kind].bits == 8 else codes,
        scale,
        None if offsets is None else torch.from_numpy(offsets),
        levels=LAYOUTS[kind].levels,
    )


def expanded(blocks: np.ndarray, kind: str) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))


def random_blocks(kind: str, factors: tuple[int, ...]) -> np.ndarray:
    """Six rows of three blocks, with any codes; factors are at these bytes."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (6, 3, LAYOUTS[kind].size), dtype=np.uint8)
    for at in factors:
        blocks[..., at : at + 2] = rng.normal(size=(6, 3, 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(6, -1)


@pytest.mark.parametrize("kind", STORED_FACTORS)
def test_a_matrix_of_blocks_is_what_gguf_makes_of_them(kind: str) -> None:
    made = kind != "IQ4_NL"
    blocks = stored(random(24, 96), kind) if made else random_blocks(kind, (0,))
    matrix, expected = matrix_of(blocks, kind), expanded(blocks, kind)
    assert torch.equal(matrix.dequantized(torch.float32), expected)
    assert torch.equal(matrix.dequantized(torch.bfloat16), expected.bfloat16())
    assert (matrix.outputs, matrix.inputs, matrix.bits) == (*expected.shape, LAYOUTS[kind].bits)
    # two bytes of a scale, and as many of an offset; of six bits for each half of a group
    factors = (2 if matrix.offset_OG is None else 4) * (2 if matrix.bits == 6 else 1)
    assert matrix.nbytes == matrix.outputs * matrix.inputs // 32 * (4 * matrix.bits + factors)


@pytest.mark.parametrize(("kind", "factors"), ROUNDED_FACTORS.items())
def test_factors_that_are_products_are_rounded_once(kind: str, factors: tuple[int, ...]) -> None:
    """To float16: a weight is off by that much of scale · code and of the offset, and of zero codes by nothing more."""
    blocks = random_blocks(kind, factors)
    matrix, expected = matrix_of(blocks, kind), expanded(blocks, kind)
    scale_OI, offset_OI = (
        None if part is None else part.float().repeat_interleave(expected.shape[1] // part.shape[1], 1)
        for part in (matrix.scale_OG, matrix.offset_OG)
    )
    assert scale_OI is not None
    size = scale_OI.abs() * 128 if offset_OI is None else scale_OI.abs() * 32 + offset_OI.abs()
    off = (matrix.dequantized(torch.float32) - expected).abs()
    assert (off <= 2**-11 * size).all() and off.any()
    # codes are exact, whatever the scales
    steps = (expected - (0 if offset_OI is None else offset_OI)) / scale_OI
    whole = matrix.codes().flatten(1)
    assert ((steps - whole).abs()[scale_OI.abs() > 0.01] < 0.25).all()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_factors_that_float16_cannot_hold_are_not_finite(kind: str) -> None:
    (at, *_) = ROUNDED_FACTORS[kind]
    blocks = random_blocks(kind, ROUNDED_FACTORS[kind]).reshape(6, 3, -1)
    blocks[2, 1, at : at + 2] = np.array([60000], "<f2").view(np.uint8)
    assert np.isinf(scales_of(blocks.reshape(6, -1), kind)).any()


@pytest.mark.parametrize(("bits", "kind"), [(4, "Q4_1"), (5, "Q5_1"), (8, "Q8_0")])
@pytest.mark.parametrize("seed", range(3))
def test_floats_are_quantized_as_gguf_does(bits: int, kind: str, seed: int) -> None:
    weight_OI = random(40, 64, seed=seed)
    # in the middle between two codes
    weight_OI[3] = torch.arange(64.0) / 2
    ours, theirs = quantize(weight_OI, bits), matrix_of(stored(weight_OI, kind), kind)
    assert torch.equal(ours.codes_OC, theirs.codes_OC) and torch.equal(ours.scale_OG, theirs.scale_OG)
    assert (ours.offset_OG is None) == (theirs.offset_OG is None)
    assert ours.offset_OG is None or torch.equal(ours.offset_OG, theirs.offset_OG)  # type: ignore[arg-type]


def test_six_bits_are_the_nearest_of_their_steps() -> None:
    weight_OI = random(40, 64)
    matrix = quantize(weight_OI, 6)
    step_OI = matrix.scale_OG.float().abs().repeat_interleave(16, 1)
    codes = matrix.codes().flatten(1)
    off = (weight_OI - matrix.dequantized(torch.float32)).abs()
    # half a step, or a whole one above the largest code; and what float16 rounds of the scale, times the code
    most = torch.where(codes == 31, 1.0, 0.5) + 32 * 2**-11
    assert (off <= most * step_OI + 2e-6).all()
    assert set(codes[5].int().tolist()) > {-32, -1, 0, 1}


def test_weights_too_small_for_float16_become_zero() -> None:
    assert not quantize(torch.full((1, 32), 1e-40), 8).dequantized(torch.float32).any()


@pytest.mark.parametrize("bits", BITS)
def test_parts_of_rows_make_the_same(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight_OI = random(10, 96)
    whole = quantize(weight_OI, bits)
    monkeypatch.setattr("spec_sdk.ops.quantizing.AT_ONCE", 3 * 96)
    parts = quantize(weight_OI, bits)
    assert torch.equal(parts.codes_OC, whole.codes_OC) and torch.equal(parts.scale_OG, whole.scale_OG)


@pytest.mark.parametrize("bits", BITS)
def test_parts_of_a_matrix(bits: int) -> None:
    matrix = quantize(random(10, 96), bits)
    whole = matrix.dequantized(torch.float32)
    assert torch.equal(matrix.rows(slice(2, 5)).dequantized(torch.float32), whole[2:5])
    assert torch.equal(matrix.rows(torch.tensor([7, 7, 1])).dequantized(torch.float32), whole[[7, 7, 1]])
    assert torch.equal(matrix.columns(32, 96).dequantized(torch.float32), whole[:, 32:])
    assert torch.equal(matrix.padded(12).dequantized(torch.float32)[:10], whole)
    assert not matrix.padded(12).dequantized(torch.float32)[10:].any()
    below = QuantizedMatrix.below([matrix, matrix.rows(slice(0, 3))])
    assert below is not None and below.bits == bits
    assert torch.equal(below.dequantized(torch.float32), torch.cat((whole, whole[:3])))
    with pytest.raises(ValueError, match="columns 16 to 64 are not whole groups of 32"):
        matrix.columns(16, 64)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: QuantizedMatrix(m.codes_OC.float(), m.scale_OG), "codes are torch.float32"),
        (lambda m: QuantizedMatrix(m.codes_OC, m.scale_OG.float()), "do not fit codes"),
        (lambda m: QuantizedMatrix(m.codes_OC, m.scale_OG, m.scale_OG[1:]), "do not fit codes"),
        (lambda m: QuantizedMatrix(m.codes_OC[:, :40], m.scale_OG[:, :1]), "40 inputs are not whole groups"),
        (lambda m: quantize(torch.zeros(2, 40), 4), "40 inputs are not whole groups"),
    ],
)
def test_parts_that_do_not_fit(change: Callable[[QuantizedMatrix], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        change(quantize(random(4, 64), 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rows", [(1,), (2, 3), (40,)])
def test_products_are_those_of_the_expanded_weights(
    rows: tuple[int, ...], bits: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # three slices of rows of weights, the last one shorter
    monkeypatch.setattr("spec_sdk.ops.quantized_linear.EXPANDED", 64 * 20)
    weight_OI, bias_O, x = torch.randn(50, 64), torch.randn(50), torch.randn(*rows, 64).to(dtype)
    matrix = quantize(weight_OI, bits)
    projection = Ops().quantized_projection(matrix, bias_O.to(dtype))
    expected = x.double() @ matrix.dequantized(torch.float64).T + bias_O.to(dtype).double()
    error = (projection(x).double() - expected).abs().max() / expected.abs().max()
    assert error < (1e-6 if dtype == torch.float32 else 2e-2)
    assert projection(x).dtype == dtype and projection(x).shape == (*rows, 50)
    assert (projection.outputs, projection.inputs, projection.nbytes) == (50, 64, matrix.nbytes)
    assert torch.equal(projection.weight_OI, matrix.dequantized(torch.float32))


def test_a_product_has_its_derivative() -> None:
    matrix, x = quantize(torch.randn(9, 32), 4), torch.randn(2, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(QuantizedProjection(matrix)(x).sum(), x)
    torch.testing.assert_close(gradient, matrix.dequantized(torch.float32).sum(0).expand(2, -1))


def test_a_traced_product_is_one_operation() -> None:
    """Else a compiler would unroll the loop over rows of weights."""

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return QuantizedProjection(QuantizedMatrix(codes, scale))(x)

    matrix, x = quantize(torch.randn(9, 32), 8), torch.randn(2, 32)
    exported = torch.export.export(Layer(), (x, matrix.codes_OC, matrix.scale_OG))
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert called == ["spec_sdk.quantized_linear.default"]
    traced = exported.module()(x, matrix.codes_OC, matrix.scale_OG)
    assert torch.equal(traced, expanded_linear(x, matrix, None))


def test_a_stack_of_separate_projections() -> None:
    layers = [QuantizedProjection(quantize(torch.randn(6, 32), 4)) for _ in range(4)]
    stack, x_gKI = SeparateProjections(layers), torch.randn(2, 5, 32)
    assert len(stack) == 4 and stack[3] is layers[3]
    assert torch.equal(stack.layers(1, 3)(x_gKI), torch.stack([layers[1](x_gKI[0]), layers[2](x_gKI[1])]))


@pytest.mark.parametrize("bits", BITS)
def test_rows_of_an_embedding(bits: int) -> None:
    matrix = quantize(random(20, 64), bits)
    token_BN = torch.tensor([[3, 19, 3], [0, 7, 11]], dtype=torch.int32)
    for dtype in (torch.float32, torch.bfloat16):
        embedding, plain = QuantizedEmbedding(matrix, dtype), Embedding(matrix.dequantized(dtype))
        assert torch.equal(embedding(token_BN), plain(token_BN))
        assert torch.equal(embedding.weight_VM, plain.weight_VM)
        assert (embedding.dtype, embedding.width, embedding.device) == (plain.dtype, plain.width, plain.device)
        assert embedding.nbytes == matrix.nbytes
        head = embedding.tied_head(Ops())
        # held once
        assert isinstance(head, QuantizedProjection) and head.quantized is matrix
        assert embedding.shared_by(head) and not plain.shared_by(head)
        assert plain.shared_by(plain.tied_head(Ops())) and not embedding.shared_by(plain.tied_head(Ops()))
