"""Weights in few bits become numbers in registers, in Triton
(:mod:`spec_sdk_backends.interleaved_weights` says how they lie).

A code is put into the fraction of a float: the bits of 1, or'ed with a code shifted to its upper places, are
1 + code / 2^r. Then a weight, scale * code + offset, is one multiplication and addition, 2^r * scale and
offset - 2^r * scale being the same for a whole group. Of all ways that the processor has to make numbers of codes this
takes the fewest instructions: some five and a half a weight of 4 bits, everything included, where an H200 has time for
3.5 between two that come from memory, an H100 for 5, and smaller ones for many more.

Legend: O outputs, I inputs, W words of a block, P places of a word.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def _shifted(bits, UP: tl.constexpr):
    if UP > 0:
        bits = bits << UP
    elif UP < 0:
        bits = bits >> -UP
    return bits


@triton.jit
def _code(word_OW, upper_OW, AT: tl.constexpr, PLACE: tl.constexpr, BITS: tl.constexpr):
    """The codes of a place, their lowest bit at AT of an int32, and nothing else."""
    WIDTH: tl.constexpr = 8 if BITS == 8 else 4
    code_OW = _shifted(word_OW, AT - PLACE * WIDTH) & (((1 << WIDTH) - 1) << AT)
    if BITS == 5:
        code_OW |= _shifted(upper_OW, AT + 4 - PLACE) & (1 << (AT + 4))
    if BITS == 6:
        code_OW |= _shifted(upper_OW, AT + 4 - 2 * PLACE) & (3 << (AT + 4))
    return code_OW


@triton.jit
def _half(pair, UPPER: tl.constexpr):
    """A float16 of two, in float32."""
    if UPPER:
        pair = pair >> 16
    return pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _factors(
    factor_ptr, row_O, there_O, block, PLACE: tl.constexpr, OUTPUTS: tl.constexpr, BITS: tl.constexpr,
    OFFSETS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Scales and offsets of a place's groups, [O] each."""
    PAIRS: tl.constexpr = (4 if BITS == 8 else 8) // (1 if OFFSETS else 2)
    pair_ptr_O = factor_ptr + (block * PAIRS + PLACE // (1 if OFFSETS else 2)) * OUTPUTS + row_O
    pair_O = tl.load(pair_ptr_O) if WHOLE else tl.load(pair_ptr_O, mask=there_O, other=0)
    if OFFSETS:
        return _half(pair_O, False), _half(pair_O, True)
    else:
        return _half(pair_O, PLACE % 2 == 1), 0.0


@triton.jit
def weights_of_place(
    word_OW, upper_OW, factor_ptr, row_O, there_O, block,
    PLACE: tl.constexpr, OUTPUTS: tl.constexpr, BITS: tl.constexpr, OFFSETS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The weights [O, W] of a group of each row, in float32; 0 where a row, or its block, is not ``there``, unless
    WHOLE: then all are.
    """
    # such that four shifts serve eight places. Without offsets the sum is exact; beside them what is taken off is
    # rounded, by 2^-13 of a scale at most
    AT: tl.constexpr = 15 if BITS == 8 else (12 if PLACE == 1 or PLACE == 3 or PLACE == 5 else 16)
    code_OW = _code(word_OW, upper_OW, AT, PLACE, BITS)
    value_OW = (code_OW | 0x3F800000).to(tl.float32, bitcast=True)
    scale_O, offset_O = _factors(factor_ptr, row_O, there_O, block, PLACE, OUTPUTS, BITS, OFFSETS, WHOLE)
    MIDDLE: tl.constexpr = 128 if BITS == 8 else (0 if OFFSETS else 1 << (BITS - 1))
    FIRST: tl.constexpr = 1 << (23 - AT)
    return value_OW * (scale_O * FIRST)[:, None] + (offset_O - scale_O * (FIRST + MIDDLE))[:, None]


@triton.jit
def parts_of(word_ptr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BITS: tl.constexpr):
    """Where a matrix has what is beyond the places of its words, and its factors."""
    BLOCK: tl.constexpr = (4 if BITS == 8 else 8) * (16 if BITS == 6 else 32)
    # beyond what 32 bits count, perhaps
    words = ((INPUTS + BLOCK - 1) // BLOCK * (16 if BITS == 6 else 32)) * tl.full((), OUTPUTS, tl.int64)
    upper_ptr = word_ptr + words
    factor_ptr = upper_ptr
    if BITS == 5:
        factor_ptr = upper_ptr + words // 4
        upper_ptr = upper_ptr.to(tl.pointer_type(tl.uint8))
    if BITS == 6:
        factor_ptr = upper_ptr + words // 2
        upper_ptr = upper_ptr.to(tl.pointer_type(tl.int16))
    return upper_ptr, factor_ptr


@triton.jit(do_not_specialize=["first"])
def expand_kernel(
    word_ptr,
    row_ptr,
    out_ptr,
    first,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    BITS: tl.constexpr,
    OFFSETS: tl.constexpr,
):
    """Block ``program_id(1)`` of row ``program_id(0)`` of out [R, INPUTS]: that row behind ``first`` of the matrix, or,
    CHOSEN, row [R] of it, NaN where there is none such. In float32, and rounded once.
    """
    PLACES: tl.constexpr = 4 if BITS == 8 else 8
    WORDS: tl.constexpr = 16 if BITS == 6 else 32
    MIDDLE: tl.constexpr = 128 if BITS == 8 else (0 if OFFSETS else 1 << (BITS - 1))
    BLOCKS: tl.constexpr = (INPUTS + PLACES * WORDS - 1) // (PLACES * WORDS)
    at = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    row = at + first
    none = 0.0
    if CHOSEN:
        row = tl.load(row_ptr + at).to(tl.int64)
        none = tl.where((row >= 0) & (row < OUTPUTS), 0.0, float("nan"))
        row = tl.minimum(tl.maximum(row, 0), OUTPUTS - 1)
    upper_ptr, factor_ptr = parts_of(word_ptr, INPUTS, OUTPUTS, BITS)
    w_W = tl.arange(0, WORDS)
    at_W = (row * BLOCKS + block) * WORDS + w_W
    word_W = tl.load(word_ptr + at_W)
    upper_W = word_W
    if BITS == 5 or BITS == 6:
        upper_W = tl.load(upper_ptr + at_W).to(tl.int32)
    for place in tl.static_range(PLACES):
        scale, offset = _factors(factor_ptr, row, True, block, place, OUTPUTS, BITS, OFFSETS, True)
        code_W = _code(word_W, upper_W, 0, place, BITS) - MIDDLE
        value_W = code_W.to(tl.float32) * scale + offset + none
        i_W = (block * PLACES + place) * WORDS + w_W
        tl.store(out_ptr + at * INPUTS + i_W, value_W.to(out_ptr.dtype.element_ty), mask=i_W < INPUTS)
