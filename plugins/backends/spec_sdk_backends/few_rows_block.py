"""The loop of :mod:`spec_sdk_backends.few_rows_kernel`: a block of outputs over a part of the inputs, with weights in
rows or in few bits.

Legend: K rows, I inputs, O outputs; A lines of memory that hold a part's first inputs; W words of a block of weights in
few bits.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before
from spec_sdk_backends.interleaved_kernels import parts_of, weights_of_place


@triton.jit
def _to_cache(weight_ptr):
    """Ask for lines of memory to come to the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [weight_ptr.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def product_of_block(
    x_ptr,
    weight_ptr,
    row_O,
    real_O,
    rows,
    part,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """The sum [O, K] over ``part`` of the inputs, of rows ``row_O`` of W [OUTPUTS, I] and all of x [K, I], in float32.

    EVEN: no row of the block is missing. OVERLAPPED: AHEAD inputs of each row are asked for, then it waits.
    """
    if BITS > 0:
        return _product_of_block_in_bits(
            x_ptr, weight_ptr, row_O, real_O, rows, part,
            INPUTS, PARTS, EVEN, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, AHEAD, STAGES, OUTPUTS, BITS, OFFSETS,
        )  # fmt: skip
    else:
        return _dense_product_of_block(
            x_ptr, weight_ptr, row_O, real_O, rows, part,
            INPUTS, PARTS, EVEN, OVERLAPPED, BLOCK_K, BLOCK_O, BLOCK_I, AHEAD, STAGES,
        )  # fmt: skip


@triton.jit
def _dense_product_of_block(
    x_ptr,
    weight_ptr,
    row_O,
    real_O,
    rows,
    part,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The same for weights in rows."""
    STEPS: tl.constexpr = (INPUTS + BLOCK_I * PARTS - 1) // (BLOCK_I * PARTS)
    WHOLE: tl.constexpr = EVEN and INPUTS % (BLOCK_I * PARTS) == 0
    i_I = part * (STEPS * BLOCK_I) + tl.arange(0, BLOCK_I)
    k_K = tl.arange(0, BLOCK_K)
    real_K = k_K < rows
    row_ptr_O = weight_ptr + row_O.to(tl.int64) * INPUTS
    if OVERLAPPED and AHEAD > 0:
        # a line is of 128 bytes
        LINE: tl.constexpr = 1024 // weight_ptr.dtype.element_ty.primitive_bitwidth
        first_A = part * (STEPS * BLOCK_I) + tl.arange(0, AHEAD // LINE) * LINE
        there_O = weight_ptr + tl.where(real_O, row_O, 0).to(tl.int64) * INPUTS
        _to_cache(there_O[:, None] + tl.minimum(first_A, INPUTS - 1)[None, :])
    wait_for_the_launch_before(OVERLAPPED)
    sum_OK = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        at_I = i_I + step * BLOCK_I
        real_OI = real_O[:, None] & (at_I < INPUTS)[None, :]
        real_KI = real_K[:, None] & (at_I < INPUTS)[None, :]
        if WHOLE:
            w_OI = tl.load(row_ptr_O[:, None] + at_I[None, :], eviction_policy="evict_first")
            x_KI = tl.load(x_ptr + k_K[:, None] * INPUTS + at_I[None, :], mask=real_K[:, None], other=0.0)
        else:
            w_OI = tl.load(row_ptr_O[:, None] + at_I[None, :], mask=real_OI, other=0.0, eviction_policy="evict_first")
            x_KI = tl.load(x_ptr + k_K[:, None] * INPUTS + at_I[None, :], mask=real_KI, other=0.0)
        sum_OK = tl.dot(w_OI, tl.trans(x_KI), sum_OK, input_precision="ieee")
    return sum_OK


@triton.jit
def _product_of_block_in_bits(
    x_ptr,
    word_ptr,
    row_O,
    real_O,
    rows,
    part,
    INPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """The same for weights in BITS, as :mod:`spec_sdk_backends.interleaved_kernels` reads them; BLOCK_I inputs, whole
    blocks of theirs, a step.
    """
    PLACES: tl.constexpr = 4 if BITS == 8 else 8
    WORDS: tl.constexpr = 16 if BITS == 6 else 32
    BLOCKS: tl.constexpr = (INPUTS + PLACES * WORDS - 1) // (PLACES * WORDS)
    AT_ONCE: tl.constexpr = BLOCK_I // (PLACES * WORDS)
    STEPS: tl.constexpr = (BLOCKS + AT_ONCE * PARTS - 1) // (AT_ONCE * PARTS)
    WHOLE: tl.constexpr = BLOCKS % (AT_ONCE * PARTS) == 0
    FULL: tl.constexpr = INPUTS % (PLACES * WORDS) == 0
    w_W = tl.arange(0, WORDS)
    k_K = tl.arange(0, BLOCK_K)
    real_K = k_K < rows
    if not EVEN:
        # another row's codes, whose factors are 0
        row_O = tl.where(real_O, row_O, 0)
    word_at_O = row_O.to(tl.int64) * (BLOCKS * WORDS)
    upper_ptr, factor_ptr = parts_of(word_ptr, INPUTS, OUTPUTS, BITS)
    if OVERLAPPED and AHEAD > 0:
        # a line is of 128 bytes
        LINES: tl.constexpr = AHEAD * (8 if BITS == 8 else 4) // 1024
        first_A = part * (STEPS * AT_ONCE * WORDS) + tl.arange(0, LINES) * 32
        _to_cache(word_ptr + word_at_O[:, None] + tl.minimum(first_A, BLOCKS * WORDS - 1)[None, :])
    wait_for_the_launch_before(OVERLAPPED)
    sum_OK = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        for one in tl.static_range(AT_ONCE):
            block = (part * STEPS + step) * AT_ONCE + one
            at_W = block * WORDS + w_W
            at_OW = word_at_O[:, None] + at_W[None, :]
            there_W = at_W < BLOCKS * WORDS
            there_O = real_O & (tl.where(block < BLOCKS, row_O, OUTPUTS) < OUTPUTS)
            if WHOLE:
                word_OW = tl.load(word_ptr + at_OW, eviction_policy="evict_first")
            else:
                word_OW = tl.load(word_ptr + at_OW, mask=there_W[None, :], other=0, eviction_policy="evict_first")
            upper_OW = word_OW
            if BITS == 5 or BITS == 6:
                if WHOLE:
                    upper_OW = tl.load(upper_ptr + at_OW, eviction_policy="evict_first").to(tl.int32)
                else:
                    upper_OW = tl.load(upper_ptr + at_OW, mask=there_W[None, :], other=0, eviction_policy="evict_first")
                    upper_OW = upper_OW.to(tl.int32)
            for place in tl.static_range(PLACES):
                i_W = (block * PLACES + place) * WORDS + w_W
                x_KW_ptr = x_ptr + k_K[:, None] * INPUTS + i_W[None, :]
                if WHOLE and FULL:
                    x_KW = tl.load(x_KW_ptr, mask=real_K[:, None], other=0.0)
                else:
                    x_KW = tl.load(x_KW_ptr, mask=real_K[:, None] & (i_W < INPUTS)[None, :], other=0.0)
                w_OW = weights_of_place(
                    word_OW, upper_OW, factor_ptr, row_O, there_O, block, place, OUTPUTS, BITS, OFFSETS, WHOLE and EVEN
                )
                w_OW = w_OW.to(x_ptr.dtype.element_ty)
                sum_OK = tl.dot(w_OW, tl.trans(x_KW), sum_OK, input_precision="ieee")
    return sum_OK
