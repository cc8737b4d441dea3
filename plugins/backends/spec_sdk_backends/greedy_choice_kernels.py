"""Each row's token under greedy sampling in Triton, in two launches where torch takes seven.

The first finds the largest logit of each part of a row, the second that of the parts. A logit that is NaN counts as
+inf, so that one look at the largest says whether a row can be used.

Bytes moved from and to device memory: the logits once, 16*S*K of the parts, and 8*K of the tokens.

Legend: K rows, V vocabulary, S parts of it; in the kernels V tokens of a part and S parts, padded to powers of two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before


@triton.jit
def largest(value_X, number_X, open_X):
    """Of what is open the largest value, none of which is NaN, and the lowest number that has it; where nothing is,
    -inf and 2³¹ − 1.
    """
    top = tl.max(tl.where(open_X, value_X, float("-inf")), 0)
    return top, tl.min(tl.where(open_X & (value_X == top), number_X, 2147483647), 0)


@triton.jit
def largest_of_parts_kernel(
    logits_ptr,
    top_ptr,
    token_ptr,
    vocabulary,
    parts,
    OVERLAPPED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Row ``program_id(0)``, part ``program_id(1)`` of BLOCK_V tokens: the largest logit, float32 [K, S], and the
    lowest token that has it, int32 [K, S].
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
    wait_for_the_launch_before(OVERLAPPED)
    real_V = token_V < vocabulary
    logit_V = tl.load(logits_ptr + row * vocabulary + token_V, mask=real_V, other=0.0).to(tl.float32)
    logit_V = tl.where(logit_V == logit_V, logit_V, float("inf"))
    top, token = largest(logit_V, token_V, real_V)
    tl.store(top_ptr + row * parts + part, top)
    tl.store(token_ptr + row * parts + part, token)


@triton.jit(do_not_specialize=["parts"])
def largest_of_all_kernel(
    top_ptr,
    token_ptr,
    choice_ptr,
    parts,
    OVERLAPPED: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Row ``program_id(0)``: the token of the largest of its parts, int64 [K]; -1 where that is no finite number."""
    row = tl.program_id(0).to(tl.int64)
    part_S = tl.arange(0, BLOCK_S)
    real_S = part_S < parts
    wait_for_the_launch_before(OVERLAPPED)
    top_S = tl.load(top_ptr + row * parts + part_S, mask=real_S, other=0.0)
    token_S = tl.load(token_ptr + row * parts + part_S, mask=real_S, other=0)
    top, token = largest(top_S, token_S, real_S)
    usable = (top > float("-inf")) & (top < float("inf"))
    tl.store(choice_ptr + row, tl.where(usable, token, -1).to(tl.int64))
