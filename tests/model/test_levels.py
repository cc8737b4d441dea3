"""Matrices whose codes of 4 bits stand for levels: their parts, joined ones, other forms, products that are traced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from spec_sdk.model.gguf_fields import NOT_LINEAR
from spec_sdk.model.mxfp4 import FLOAT4
from spec_sdk.ops import Ops
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends.fixed_tile_products import FixedTileQuantizedProjection
from spec_sdk_backends.interleaved_weights import InterleavedWeights

LEVELS = pytest.mark.parametrize("levels", [FLOAT4, NOT_LINEAR], ids=["MXFP4", "IQ4"])


def by_levels(levels: tuple[int, ...], outputs: int = 10, inputs: int = 96) -> QuantizedMatrix:
    rng = torch.Generator().manual_seed(outputs)
    codes = torch.randint(256, (outputs, inputs // 2), generator=rng).to(torch.uint8)
    scale_OG = torch.randn(outputs, inputs // 32, generator=rng).half()
    return QuantizedMatrix(codes, scale_OG, levels=levels)


@LEVELS
def test_weights_are_levels_by_scales(levels: tuple[int, ...]) -> None:
    matrix = by_levels(levels)
    low, high = matrix.codes_OC.view(10, 3, 16) & 15, matrix.codes_OC.view(10, 3, 16) >> 4
    level_OGK = torch.tensor(levels)[torch.cat((low, high), 2).long()]
    expected = (level_OGK * matrix.scale_OG.float()[..., None]).flatten(1)
    assert torch.equal(matrix.dequantized(torch.float32), expected)
    assert (matrix.bits, matrix.inputs, matrix.nbytes) == (4, 96, 10 * 3 * 18)


@LEVELS
def test_parts(levels: tuple[int, ...]) -> None:
    matrix = by_levels(levels)
    whole = matrix.dequantized(torch.float32)
    some = torch.tensor([7, 0, 7])
    assert torch.equal(matrix.rows(some).dequantized(torch.float32), whole[some])
    assert torch.equal(matrix.columns(32, 64).dequantized(torch.float32), whole[:, 32:64])
    assert torch.equal(matrix.padded(16).dequantized(torch.float32), F.pad(whole, (0, 0, 0, 6)))
    assert torch.equal(QuantizedMatrix.stacked([matrix, matrix]).dequantized(torch.float32), whole.repeat(2, 1))
    assert torch.equal(matrix.centred().dequantized(torch.float32), whole)


@LEVELS
def test_without_levels(levels: tuple[int, ...]) -> None:
    """In as few bits as hold the levels, on GPUs."""
    matrix = by_levels(levels)
    whole = matrix.dequantized(torch.float32)
    plain = matrix.without_levels()
    assert (plain.levels, plain.bits) == (None, 5 if levels is FLOAT4 else 8)
    assert torch.equal(plain.dequantized(torch.float32), whole)
    assert torch.equal(InterleavedWeights.of(matrix).plain().dequantized(torch.float32), whole)
    assert torch.equal(FixedTileQuantizedProjection(matrix).weight_OI, whole)


@pytest.mark.parametrize(
    ("others", "bits"),
    [
        ([by_levels(FLOAT4, 3)], 4),
        ([by_levels(NOT_LINEAR, 3)], 8),
        ([quantize(torch.randn(3, 96), 8)], 8),
        ([quantize(torch.randn(3, 96), 4)], 5),
        ([quantize(torch.randn(3, 96), 6), by_levels(FLOAT4, 4)], 6),
    ],
)
def test_beside_others(others: list[QuantizedMatrix], bits: int) -> None:
    parts = [by_levels(FLOAT4), *others]
    joined = QuantizedMatrix.below(parts)
    assert joined is not None and joined.bits == bits
    assert joined.levels == (FLOAT4 if bits == 4 else None)
    expected = torch.cat([part.dequantized(torch.float32) for part in parts])
    assert (joined.dequantized(torch.float32) - expected).abs().max() <= 1e-3 * expected.abs().max()


@LEVELS
def test_products(levels: tuple[int, ...]) -> None:
    matrix, x, bias_O = by_levels(levels), torch.randn(3, 96), torch.randn(10)
    expected = x.double() @ matrix.dequantized(torch.float64).T + bias_O.double()
    found = Ops().quantized_projection(matrix, bias_O)(x)
    assert (found.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_traced_product_knows_them() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return QuantizedProjection(QuantizedMatrix(codes, scale, levels=FLOAT4))(x)

    matrix, x = by_levels(FLOAT4), torch.randn(2, 96)
    exported = torch.export.export(Layer(), (x, matrix.codes_OC, matrix.scale_OG))
    traced = exported.module()(x, matrix.codes_OC, matrix.scale_OG)
    assert torch.equal(traced, QuantizedProjection(matrix)(x))


def test_what_has_none() -> None:
    for other in (quantize(torch.randn(4, 32), 8), quantize(torch.randn(4, 32), 4)):
        with pytest.raises(ValueError, match="do not stand for levels"):
            replace(other, levels=FLOAT4)
    for levels in (FLOAT4[:8], (*FLOAT4[:15], 128), (-129, *FLOAT4[1:])):
        with pytest.raises(ValueError, match="codes of 4 bits do not stand for levels"):
            by_levels(levels)
