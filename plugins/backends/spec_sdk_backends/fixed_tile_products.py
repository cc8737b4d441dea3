"""Linear layers that :mod:`spec_sdk_backends.fixed_tile_kernel` multiplies: a row's bits do not depend on other rows.

Legend: K rows, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedMatrix, bits_of
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk_backends import fixed_tile_kernel
from spec_sdk_backends.fixed_tile_kernel import fixed_tile_product_kernel

TILE_ROWS: int = fixed_tile_kernel.TILE_ROWS.value
MOST_TILES = 4
"""Of a program: more accumulators would leave no registers for the loads of the next block."""
INTERPRETED_OUTPUTS = 256
"""Of a block off the GPU, since interpreting takes a time per program."""


@dataclass(frozen=True)
class Blocks:
    """Inputs and outputs of a block, warps of a program and stages of its loop: the same for any number of rows."""

    inputs: int
    outputs: int
    warps: int = 4
    stages: int = 4

    @staticmethod
    def choose(dtype: torch.dtype, bits: int, on_gpu: bool) -> Blocks:
        """By what the weights are alone: a choice by rows would be another order of sums."""
        outputs = 32 if on_gpu else INTERPRETED_OUTPUTS
        # codes are expanded in registers, of which a block of 128 inputs would take too many
        return Blocks(64 if bits or dtype.itemsize == 4 else 128, outputs, stages=3 if dtype.itemsize == 4 else 4)


def tiles_of(rows: int) -> int:
    """How many tiles of 16 rows a program multiplies with each block of weights: 1, 2 or 4.

    Bits do not depend on it: every tile has an accumulator of its own.
    """
    return next((tiles for tiles in (1, 2) if rows <= tiles * TILE_ROWS), MOST_TILES)


class FixedTileProjection(Projection):
    """Dense weights, in plain rows, copied once if they do not begin at a multiple of 16 bytes."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(aligned(weight_OI), None if bias_O is None else bias_O.contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            return super().__call__(x)
        return multiply(x, self._weight_OI, None, None, self.bias_O, self.outputs)


class FixedTileQuantizedProjection(QuantizedProjection):
    """Weights in few bits, expanded block by block as they are multiplied."""

    quantized: QuantizedMatrix

    def __init__(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> None:
        matrix = matrix.without_levels()
        offset_OG = None if matrix.offset_OG is None else matrix.offset_OG.contiguous()
        in_place = QuantizedMatrix(aligned(matrix.codes_OC), matrix.scale_OG.contiguous(), offset_OG)
        super().__init__(in_place, None if bias_O is None else bias_O.contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            return super().__call__(x)
        m = self.quantized
        return multiply(x, m.codes_OC, m.scale_OG, m.offset_OG, self.bias_O, m.outputs)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale_OG: torch.Tensor | None,
    offset_OG: torch.Tensor | None,
    bias_O: torch.Tensor | None,
    outputs: int,
    tiles: int | None = None,
) -> torch.Tensor:
    """x [..., I] times the weights: [..., O]. ``weight``: dense, or the codes that ``scale_OG`` belongs to; they are
    :func:`aligned`, and all other parts contiguous. ``tiles``: another number of them than :func:`tiles_of` says.
    """
    x_KI = aligned(x.reshape(-1, x.shape[-1]))
    K, I = x_KI.shape  # noqa: E741
    out = x.new_empty((*x.shape[:-1], outputs))
    if not out.numel():
        return out
    bits = 0 if scale_OG is None else bits_of(weight.dtype == torch.int8, weight.shape[1], scale_OG.shape[1])
    assert bits is not None
    blocks = Blocks.choose(x.dtype, bits, x.is_cuda)
    tiles = tiles or tiles_of(K)
    fixed_tile_product_kernel[(triton.cdiv(K, tiles * TILE_ROWS), triton.cdiv(outputs, blocks.outputs))](
        x_KI,
        weight,
        # tensors that are not read stand for those that there are none of
        weight if scale_OG is None else scale_OG,
        weight if offset_OG is None else offset_OG,
        weight if bias_O is None else bias_O,
        out,
        K,
        I=I,
        O=outputs,
        BITS=bits,
        OFFSET=offset_OG is not None,
        BIAS=bias_O is not None,
        TILES=tiles,
        BLOCK_I=blocks.inputs,
        BLOCK_O=blocks.outputs,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        enable_fp_fusion=False,
    )
    return out


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy: contiguous, from a multiple of 16 bytes on, so that one compiled kernel serves all."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
