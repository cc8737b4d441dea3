"""A linear layer in Triton whose rows do not depend on how many there are.

Rows are multiplied in tiles of 16, the least that tensor cores take. A tile meets the same blocks of weights in the
same order, with products of the same shape, whether one of its rows is real or all of them, and whether it is the only
tile or one of a thousand; the sum over the inputs is never shared out. So the sum of one row and one output is made of
the same operations in the same order in every pass.

A wide pass lets a program multiply up to four tiles with each block of weights that it loads. Each has an accumulator
and products of its own: it is the loop of one tile, with its loads of weights shared.

Weights in few bits are expanded as they are loaded: scale * code + offset in float32, rounded to the rows' dtype.

Bytes moved, for K rows and e bytes per element: weights O*I*e for every 16*TILES rows (fewer where they hit the L2
cache), rows K*I*e for every block of outputs, which they mostly hit, and K*O*e of results.

Legend: K rows, I inputs, O outputs, C bytes of codes in a row of weights; in the kernels M rows of a tile, I inputs and
O outputs of a block.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

TILE_ROWS = tl.constexpr(16)
GROUP = tl.constexpr(32)


@triton.jit
def _weights(
    weight_ptr,
    scale_ptr,
    offset_ptr,
    output_O,
    input_I,
    real_OI,
    I: tl.constexpr,  # noqa: E741
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    dtype: tl.constexpr,
):
    """A block of weights [O, I], in ``dtype``."""
    if BITS == 0:
        return tl.load(weight_ptr + output_O[:, None] * I + input_I[None, :], mask=real_OI, other=0.0)
    else:
        if BITS == 8:
            code_ptr = weight_ptr + output_O[:, None] * I + input_I[None, :]
            code_OI = tl.load(code_ptr, mask=real_OI, other=0).to(tl.float32)
        else:
            # a group's first 16 codes are in the low halves of its bytes, the others in the high ones
            row_ptr = weight_ptr + output_O[:, None] * (I * BITS // 8)
            group_ptr = row_ptr + (input_I // GROUP * (GROUP * BITS // 8))[None, :]
            byte_OI = tl.load(group_ptr + (input_I % (GROUP // 2))[None, :], mask=real_OI, other=0).to(tl.int32)
            shift_I = input_I % GROUP // (GROUP // 2) * 4
            code_OI = (byte_OI >> shift_I[None, :]) & 15
            if BITS == 5:
                upper_ptr = group_ptr + (input_I % GROUP // 8 + GROUP // 2)[None, :]
                upper_OI = tl.load(upper_ptr, mask=real_OI, other=0).to(tl.int32) >> (input_I % 8)[None, :]
                code_OI += (upper_OI & 1) * 16
            if BITS == 6:
                upper_ptr = group_ptr + (input_I % 8 + GROUP // 2)[None, :]
                upper_OI = tl.load(upper_ptr, mask=real_OI, other=0).to(tl.int32) >> (input_I % GROUP // 8 * 2)[None, :]
                code_OI += (upper_OI & 3) * 16
            if not OFFSET:
                code_OI -= 1 << (BITS - 1)
            code_OI = code_OI.to(tl.float32)
        group_OI = output_O[:, None] * (I // GROUP) + (input_I // GROUP)[None, :]
        if BITS == 6:
            group_OI = output_O[:, None] * (I // GROUP * 2) + (input_I // (GROUP // 2))[None, :]
        value_OI = code_OI * tl.load(scale_ptr + group_OI, mask=real_OI, other=0.0).to(tl.float32)
        if OFFSET:
            value_OI += tl.load(offset_ptr + group_OI, mask=real_OI, other=0.0).to(tl.float32)
        return value_OI.to(dtype)


@triton.jit
def _multiplied(x_ptr, first_row, K, input_I, there_I, weight_IO, acc_MO, I: tl.constexpr):  # noqa: E741
    """``acc`` plus a tile's rows from ``first_row`` on times a block of weights."""
    row_M = first_row + tl.arange(0, TILE_ROWS)
    real_MI = (row_M < K)[:, None] & there_I[None, :]
    x_MI = tl.load(x_ptr + row_M[:, None] * I + input_I[None, :], mask=real_MI, other=0.0)
    return tl.dot(x_MI, weight_IO, acc_MO, input_precision="tf32x3")


@triton.jit
def _store(out_ptr, bias_ptr, first_row, K, output_O, acc_MO, O: tl.constexpr, BIAS: tl.constexpr):  # noqa: E741
    row_M = first_row + tl.arange(0, TILE_ROWS)
    real_O = output_O < O
    if BIAS:
        acc_MO += tl.load(bias_ptr + output_O, mask=real_O, other=0.0).to(tl.float32)[None, :]
    stored_MO = (row_M < K)[:, None] & real_O[None, :]
    tl.store(out_ptr + row_M[:, None] * O + output_O[None, :], acc_MO.to(out_ptr.dtype.element_ty), mask=stored_MO)


@triton.jit(do_not_specialize=["K"])
def fixed_tile_product_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    offset_ptr,
    bias_ptr,
    out_ptr,
    K,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    BIAS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Tiles ``TILES * program_id(0)`` … of 16 rows, BLOCK_O outputs ``program_id(1)``: out [K, O] = x [K, I] Wᵀ + bias,
    rounded once.

    BITS 0: weights [O, I] in the dtype of x; others: codes [O, C], with a scale and, OFFSET, an offset for each
    group of 32 inputs, of 6 bits for each half of it. TILES: 1, 2 or 4.
    """
    first_row = tl.program_id(0).to(tl.int64) * (TILE_ROWS * TILES)
    output_O = tl.program_id(1).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)
    acc0_MO = tl.zeros([TILE_ROWS, BLOCK_O], tl.float32)
    if TILES > 1:
        acc1_MO = tl.zeros([TILE_ROWS, BLOCK_O], tl.float32)
    if TILES > 2:
        acc2_MO = tl.zeros([TILE_ROWS, BLOCK_O], tl.float32)
        acc3_MO = tl.zeros([TILE_ROWS, BLOCK_O], tl.float32)
    for first in range(0, I, BLOCK_I):
        input_I = first + tl.arange(0, BLOCK_I)
        there_I = input_I < I
        real_OI = (output_O < O)[:, None] & there_I[None, :]
        weight_OI = _weights(
            weight_ptr, scale_ptr, offset_ptr, output_O, input_I, real_OI, I, BITS, OFFSET, x_ptr.dtype.element_ty
        )
        weight_IO = tl.trans(weight_OI)
        acc0_MO = _multiplied(x_ptr, first_row, K, input_I, there_I, weight_IO, acc0_MO, I)
        if TILES > 1:
            acc1_MO = _multiplied(x_ptr, first_row + TILE_ROWS, K, input_I, there_I, weight_IO, acc1_MO, I)
        if TILES > 2:
            acc2_MO = _multiplied(x_ptr, first_row + 2 * TILE_ROWS, K, input_I, there_I, weight_IO, acc2_MO, I)
            acc3_MO = _multiplied(x_ptr, first_row + 3 * TILE_ROWS, K, input_I, there_I, weight_IO, acc3_MO, I)
    _store(out_ptr, bias_ptr, first_row, K, output_O, acc0_MO, O, BIAS)
    if TILES > 1:
        _store(out_ptr, bias_ptr, first_row + TILE_ROWS, K, output_O, acc1_MO, O, BIAS)
    if TILES > 2:
        _store(out_ptr, bias_ptr, first_row + 2 * TILE_ROWS, K, output_O, acc2_MO, O, BIAS)
        _store(out_ptr, bias_ptr, first_row + 3 * TILE_ROWS, K, output_O, acc3_MO, O, BIAS)
