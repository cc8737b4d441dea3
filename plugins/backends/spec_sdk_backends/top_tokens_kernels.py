"""The most probable tokens of each row in Triton, in two launches where torch's topk and logsumexp take some twenty.

The first launch finds the largest logits of each part of a row, one after the other, and the part's sum of exponents;
the second does it with what the parts have found. A logit that is NaN counts as +inf, which makes the row's sum NaN.

Bytes moved from and to device memory: the logits once, (16*W + 8)*S*K of the parts, and 12*W*K of the tokens.

Legend: K rows, V vocabulary, S parts of it, W tokens of a row that are looked for, C = S*W candidates; in the kernels
V tokens of a part, S parts and C candidates, padded to powers of two.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import wait_for_the_launch_before
from spec_sdk_backends.greedy_choice_kernels import largest


@triton.jit
def top_of_parts_kernel(
    logits_ptr,
    top_ptr,
    token_ptr,
    sum_ptr,
    vocabulary,
    parts,
    WANTED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Row ``program_id(0)``, part ``program_id(1)`` of BLOCK_V tokens: its WANTED largest logits, float32 [K, S, W],
    and their tokens, int32 [K, S, W], the largest first and of equal ones the lowest token, 2³¹ − 1 for one that there
    is none of; and the sum of exp(logit − largest), float32 [K, S].
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
    open_V = token_V < vocabulary
    wait_for_the_launch_before(OVERLAPPED)
    logit_V = tl.load(logits_ptr + row * vocabulary + token_V, mask=open_V, other=float("-inf")).to(tl.float32)
    logit_V = tl.where(logit_V == logit_V, logit_V, float("inf"))
    highest = tl.max(logit_V, 0)
    # a part of -inf alone adds nothing
    base = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(sum_ptr + row * parts + part, tl.sum(tl.exp(logit_V - base), 0))
    found = (row * parts + part) * WANTED
    for place in tl.static_range(WANTED):
        top, token = largest(logit_V, token_V, open_V)
        tl.store(top_ptr + found + place, top)
        tl.store(token_ptr + found + place, token)
        open_V = open_V & (token_V != token)


@triton.jit(do_not_specialize=["kept"])
def top_of_all_kernel(
    top_ptr,
    token_ptr,
    sum_ptr,
    logprob_ptr,
    place_ptr,
    parts,
    kept,
    WANTED: tl.constexpr,
    OVERLAPPED: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Row ``program_id(0)``: of what its parts have found the ``kept`` largest logits, at most WANTED, as
    log-probabilities, float32 [K, kept], and their tokens, int64 [K, kept].
    """
    row = tl.program_id(0).to(tl.int64)
    part_S, candidate_C = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_C)
    real_S, real_C = part_S < parts, candidate_C < parts * WANTED
    wait_for_the_launch_before(OVERLAPPED)
    sum_S = tl.load(sum_ptr + row * parts + part_S, mask=real_S, other=0.0)
    # each part's first is its largest
    highest_S = tl.load(top_ptr + (row * parts + part_S) * WANTED, mask=real_S, other=float("-inf"))
    highest = tl.max(highest_S, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = base + tl.log(tl.sum(sum_S * tl.exp(highest_S - base), 0))
    top_C = tl.load(top_ptr + row * parts * WANTED + candidate_C, mask=real_C, other=float("-inf"))
    token_C = tl.load(token_ptr + row * parts * WANTED + candidate_C, mask=real_C, other=2147483647)
    open_C = token_C != 2147483647
    for place in tl.static_range(WANTED):
        top, token = largest(top_C, token_C, open_C)
        tl.store(logprob_ptr + row * kept + place, top - total, mask=place < kept)
        tl.store(place_ptr + row * kept + place, token.to(tl.int64), mask=place < kept)
        open_C = open_C & (token_C != token)
