"""Which tokens of a row of logits top-k, top-p and min-p keep, in Triton: in one launch, and without sorting.

A program to a row. It reads the row for its largest logits, and once more for those that may be kept, which it puts
side by side where there is room: with top-k there are at least k of the row's lanes (every TILE-th logit) that reach
the k-th largest of their maxima, so no smaller logit need be looked at; with top-p, tokens of less than (1 - top_p) / V
sum to less than 1 - top_p, so all of them lie outside. Among the few that are left the border is looked for by
quartering: of floats as integers in the same order for top-k, by the mass above them for top-p. Where they are too many
for the room, every quartering reads the row.

Bytes moved: the row twice, of which the second time is from the L2 cache; 8 for each token that may be kept.

Legend: J lanes of a tile, V vocabulary.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.logit_rows import NOWHERE, scores, weights


@triton.jit
def _ordered(logit):
    """A float32 as an int32 that is as large among integers as it is among floats."""
    bits = logit.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _logits(p_ptr, q_ptr, of_target, offset, token, inside, ALIGNED: tl.constexpr):
    """Logits in float32, -inf outside the row. Zeros have no sign: they are equal, and must be so as integers."""
    if of_target:
        logit = scores(p_ptr, offset, token, inside, 0.0, 0, False, ALIGNED)
    else:
        logit = scores(q_ptr, offset, token, inside, 0.0, 0, False, ALIGNED)
    return logit + 0.0


@triton.jit
def _candidates(
    p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Tile ``i`` of what may be kept: logits and tokens, in the order of tokens."""
    token_J = i * TILE + tl.arange(0, TILE)
    if near:
        logit_J = tl.load(near_ptr + token_J, mask=token_J < count, other=float("-inf"))
        token_J = tl.load(place_ptr + token_J, mask=token_J < count, other=V)
    else:
        logit_J = _logits(p_ptr, q_ptr, of_target, offset, token_J, token_J < V, ALIGNED)
    return logit_J, token_J


@triton.jit
def _kth_lane(most_J, k, low, high):
    """The k-th largest of a tile's numbers, as an ordered integer between these two, int64: their distance may be no
    int32.
    """
    key_J = _ordered(most_J)
    while low < high:
        step = (high - low + 3) // 4
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        if tl.sum((key_J >= third.to(tl.int32)).to(tl.int32), 0) >= k:
            low = third
        elif tl.sum((key_J >= second.to(tl.int32)).to(tl.int32), 0) >= k:
            low = second
            high = third - 1
        elif tl.sum((key_J >= first.to(tl.int32)).to(tl.int32), 0) >= k:
            low = first
            high = second - 1
        else:
            high = first - 1
    return low


# what changes from tree to tree is not specialised on: a kernel of its own would take seconds to compile
@triton.jit(do_not_specialize=["p_rows", "rows_each"], do_not_specialize_on_alignment=["shaping_ptr"])
def kept_tokens_kernel(
    p_ptr,
    q_ptr,
    row_offset_ptr,
    shaping_ptr,
    near_ptr,
    place_ptr,
    least_ptr,
    last_ptr,
    p_rows,
    rows_each,
    V,
    ALIGNED: tl.constexpr,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row): its least kept logit, and the last kept token among its equals.

    Rows lie at ``row_offset`` elements from ``p``, those from ``p_rows`` on from ``q``; one that is NOWHERE is passed
    over. ``shaping`` float64 [B, 4]: numbers of the samplings of ``rows_each`` rows each. ``near`` [R, ROOM] float32,
    ``place`` int32: room for what may be kept. A row of no use has any border.
    """
    row = tl.program_id(0)
    offset = tl.load(row_offset_ptr + row)
    if offset != NOWHERE:
        of_target = row < p_rows
        shaping = shaping_ptr + row // rows_each * 4
        # the least normal float32
        temperature = tl.maximum(tl.load(shaping).to(tl.float32), 1.1754943508222875e-38)
        top_k = tl.load(shaping + 1).to(tl.int32)
        top_p = tl.load(shaping + 2)
        cuts_k = (top_k > 0) & (top_k < V)
        cuts_p = top_p < 1.0
        near_ptr += row.to(tl.int64) * ROOM
        place_ptr += row.to(tl.int64) * ROOM
        tiles = tl.cdiv(V, TILE)

        most_J = tl.full((TILE,), float("-inf"), tl.float32)
        for i in range(tiles):
            token_J = i * TILE + tl.arange(0, TILE)
            most_J = tl.maximum(most_J, _logits(p_ptr, q_ptr, of_target, offset, token_J, token_J < V, ALIGNED))
        largest = tl.max(most_J, 0)
        high = _ordered(largest).to(tl.int64)
        low = _ordered(tl.full((), float("-inf"), tl.float32)).to(tl.int64)
        if cuts_k:
            # all that top-k keeps has its part in the sum that top-p is a share of
            if top_k <= TILE:
                low = _kth_lane(most_J, top_k, low, high)
        elif cuts_p:
            outside = tl.log(((1.0 - top_p) / V).to(tl.float32)) - 0.01
            # two integers less, for what rounding may have added
            low = tl.minimum(_ordered(largest + temperature * outside).to(tl.int64) - 2, high)

        least = tl.full((), float("-inf"), tl.float32)
        last = V
        if cuts_k | cuts_p:
            count = tl.full((), 0, tl.int32)
            total = tl.full((), 0.0, tl.float64)
            for i in range(tiles):
                token_J = i * TILE + tl.arange(0, TILE)
                logit_J = _logits(p_ptr, q_ptr, of_target, offset, token_J, token_J < V, ALIGNED)
                open_J = ((_ordered(logit_J) >= low.to(tl.int32)) & (token_J < V)).to(tl.int32)
                slot_J = count + tl.cumsum(open_J, 0) - 1
                kept_J = (open_J > 0) & (slot_J < ROOM)
                tl.store(near_ptr + slot_J, logit_J, mask=kept_J)
                tl.store(place_ptr + slot_J, token_J, mask=kept_J)
                count += tl.sum(open_J, 0)
                total += tl.sum(weights(logit_J, largest, temperature), 0).to(tl.float64)
            # what one thread has stored, another one loads
            tl.debug_barrier()
            near = count <= ROOM
            if near:
                tiles = tl.cdiv(count, TILE)

            border = low
            if cuts_k:
                upper = high
                while border < upper:
                    step = (upper - border + 3) // 4
                    first = border + step
                    second = tl.minimum(first + step, upper)
                    third = tl.minimum(second + step, upper)
                    in_first = tl.full((), 0, tl.int32)
                    in_second = tl.full((), 0, tl.int32)
                    in_third = tl.full((), 0, tl.int32)
                    for i in range(tiles):
                        logit_J, token_J = _candidates(
                            p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                        )
                        key_J = _ordered(logit_J)
                        in_first += tl.sum(((key_J >= first.to(tl.int32)) & (token_J < V)).to(tl.int32), 0)
                        in_second += tl.sum(((key_J >= second.to(tl.int32)) & (token_J < V)).to(tl.int32), 0)
                        in_third += tl.sum(((key_J >= third.to(tl.int32)) & (token_J < V)).to(tl.int32), 0)
                    if in_third >= top_k:
                        border = third
                    elif in_second >= top_k:
                        border = second
                        upper = third - 1
                    elif in_first >= top_k:
                        border = first
                        upper = second - 1
                    else:
                        upper = first - 1
                total = tl.full((), 0.0, tl.float64)
                for i in range(tiles):
                    logit_J, token_J = _candidates(
                        p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                    )
                    weight_J = weights(logit_J, largest, temperature)
                    total += tl.sum(tl.where(_ordered(logit_J) >= border.to(tl.int32), weight_J, 0.0), 0).to(tl.float64)

            whole = total.to(tl.float32)
            if cuts_p:
                upper = high
                while border < upper:
                    first = border + (upper - border) // 4
                    second = border + (upper - border) // 2
                    third = border + (upper - border) * 3 // 4
                    above_first = tl.full((), 0.0, tl.float64)
                    above_second = tl.full((), 0.0, tl.float64)
                    above_third = tl.full((), 0.0, tl.float64)
                    for i in range(tiles):
                        logit_J, token_J = _candidates(
                            p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                        )
                        key_J = _ordered(logit_J)
                        # sums of float64: those of equals are exact, as a sum over sorted ones has them
                        p_J = tl.div_rn(weights(logit_J, largest, temperature), whole).to(tl.float64)
                        above_first += tl.sum(tl.where(key_J > first.to(tl.int32), p_J, 0.0), 0)
                        above_second += tl.sum(tl.where(key_J > second.to(tl.int32), p_J, 0.0), 0)
                        above_third += tl.sum(tl.where(key_J > third.to(tl.int32), p_J, 0.0), 0)
                    if above_first < top_p:
                        upper = first
                    elif above_second < top_p:
                        border = first + 1
                        upper = second
                    elif above_third < top_p:
                        border = second + 1
                        upper = third
                    else:
                        border = third + 1

            # the least that reaches the border, how many equal it, and the mass above
            least = tl.full((), float("inf"), tl.float32)
            for i in range(tiles):
                logit_J, token_J = _candidates(
                    p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                )
                reaches_J = (_ordered(logit_J) >= border.to(tl.int32)) & (token_J < V)
                least = tl.minimum(least, tl.min(tl.where(reaches_J, logit_J, float("inf")), 0))
            if cuts_p:
                equals = tl.full((), 0, tl.int32)
                above = tl.full((), 0.0, tl.float64)
                for i in range(tiles):
                    logit_J, token_J = _candidates(
                        p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                    )
                    p_J = tl.div_rn(weights(logit_J, largest, temperature), whole).to(tl.float64)
                    above += tl.sum(tl.where(logit_J > least, p_J, 0.0), 0)
                    equals += tl.sum(((logit_J == least) & (token_J < V)).to(tl.int32), 0)
                p = tl.div_rn(weights(least, largest, temperature), whole).to(tl.float64)
                # those of which the ones before do not reach top-p; where a sum is rounded away, all
                wanted = tl.minimum((top_p - above) / p, equals.to(tl.float64))
                stay = tl.where(wanted >= 1.0, wanted, 1.0).to(tl.int32)
                stay = tl.where((stay < equals) & (above + stay * p < top_p), stay + 1, stay)
                stay = tl.where((stay > 1) & (above + (stay - 1) * p >= top_p), stay - 1, stay)
                before = tl.full((), 0, tl.int32)
                for i in range(tiles):
                    logit_J, token_J = _candidates(
                        p_ptr, q_ptr, of_target, offset, near, near_ptr, place_ptr, count, i, V, ALIGNED, TILE
                    )
                    equal_J = ((logit_J == least) & (token_J < V)).to(tl.int32)
                    is_last_J = (equal_J > 0) & (before + tl.cumsum(equal_J, 0) == stay)
                    last = tl.minimum(last, tl.min(tl.where(is_last_J, token_J, V), 0))
                    before += tl.sum(equal_J, 0)

        highest_outside = largest + temperature * tl.load(shaping + 3).to(tl.float32)
        if highest_outside > least:
            least = highest_outside
            last = V
        tl.store(least_ptr + row, least)
        tl.store(last_ptr + row, last)
