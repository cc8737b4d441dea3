"""Rejection sampling on chains in Triton: normalisers, decision and next token, on the device.

Three kernels, one after the other on a stream, which hold no host decision and so may be captured in a graph:

1. ``row_statistics_kernel``: per row of logits, target and draft, the largest score and the sum of
   exp(score − largest), online, by parts of the row that as many programs work on (FlashDecoding's split).
2. ``decide_kernel``: every program walks the chain: p and q at the drafted token are two gathered logits and two pairs
   of statistics. Then it sums, for its part of the one row that the walk ended on, a = max(0, p − q) after a rejected
   drawn token, p without the token after a rejected chosen one, p after a wholly accepted chain; and p itself, for the
   case that a is nothing.
3. ``next_token_kernel``: finds the tile in which the next token lies by the sums of tiles, and the token in the tile.

The verdict is three integers a sequence (accepted tokens, next token, unusable row), which the host reads in one
transfer. No probability is written: nothing of size N x V or V is made.

Bytes moved from device memory per sequence of γ drawn tokens, with e bytes per logit: (2γ + 1)·V·e for the statistics
and 2·V·e for the row that needs a (V·e after an accepted chain), with one tile more. The floor for exact decisions is
that each row a decision reads is read once for its normaliser, and the last one once more: (2k + 1)·V·e + 2·V·e when k
tokens are tested. All γ are read because what k is is only known afterwards; where they hit the L2 cache the second
reading is free. Written and read again: 8 bytes per row and part, 16 per tile. A sigmoid needs no statistics of draft
rows: (γ + 1)·V·e + 2·V·e; those of the target are for the tokens that follow its softmax.

With top-k, top-p or min-p every row comes with the least kept logit and the last kept token among its equals
(:func:`spec_sdk_samplers.support.least_kept`), found by sorting: its own passes over the rows, before the first kernel.

Legend: B sequences, R rows, S parts of a row, T tiles, V vocabulary.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def _scores(row_ptr, offset, token, inside, least, last, temperature, FILTERED: tl.constexpr):
    """Logits over temperature, in float32; -inf for what lies outside or is filtered out."""
    logit = tl.load(row_ptr + offset + token, mask=inside, other=float("-inf")).to(tl.float32)
    if FILTERED:
        kept = (logit > least) | ((logit == least) & (token <= last))
        # NaN compares false, and must not vanish
        logit = tl.where(kept | (logit != logit), logit, float("-inf"))
    return tl.div_rn(logit, temperature)


@triton.jit
def row_statistics_kernel(
    p_ptr,
    q_ptr,
    row_offset_ptr,
    least_ptr,
    last_ptr,
    max_ptr,
    sum_ptr,
    p_rows,
    V,
    tiles_per_part,
    temperature,
    FILTERED: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row, part). Rows below ``p_rows`` are the target's. A row at offset -1 (chosen token) is passed over."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    offset = tl.load(row_offset_ptr + row)
    if offset >= 0:
        least = 0.0
        last = 0
        if FILTERED:
            least = tl.load(least_ptr + row)
            last = tl.load(last_ptr + row)
        largest = float("-inf")
        total = 0.0
        for i in range(tiles_per_part):
            token = (part * tiles_per_part + i) * TILE + tl.arange(0, TILE)
            inside = token < V
            if row < p_rows:
                score = _scores(p_ptr, offset, token, inside, least, last, temperature, FILTERED)
            else:
                score = _scores(q_ptr, offset, token, inside, least, last, temperature, FILTERED)
            new = tl.maximum(largest, tl.max(score, 0))
            base = tl.where(new == float("-inf"), 0.0, new)
            total = total * tl.exp(largest - base) + tl.sum(tl.exp(score - base), 0)
            largest = new
        tl.store(max_ptr + row * PARTS + part, largest)
        tl.store(sum_ptr + row * PARTS + part, total)


@triton.jit
def _combined(max_ptr, sum_ptr, row, PARTS: tl.constexpr):
    """Largest score of a row and the sum of exp(score − largest), from its parts; NaN or 0 if it is unusable."""
    part = tl.arange(0, PARTS)
    largest_S = tl.load(max_ptr + row * PARTS + part)
    sum_S = tl.load(sum_ptr + row * PARTS + part)
    largest = tl.max(largest_S, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    return base, tl.sum(sum_S * tl.exp(largest_S - base), 0)


@triton.jit
def _law(score, largest, total, alpha, width, SIGMOID: tl.constexpr):
    """Softmax from the statistics, or the sigmoid of the score."""
    if SIGMOID:
        value = 1.0 / (1.0 + tl.exp(-tl.div_rn(score - alpha, width)))
        value = tl.where(score == float("-inf"), 0.0, value)
    else:
        value = tl.div_rn(tl.exp(score - largest), total)
    return value


@triton.jit
def _mass(
    p_ptr, p_offset, p_least, p_last, p_max, p_sum,
    q_ptr, q_offset, q_least, q_last, q_max, q_sum,
    token, inside, temperature, alpha, width, rejected, chosen,
    FILTERED: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """What the next token is drawn from, over the tokens of a tile, and the law without a rejection.

    ``chosen`` is the rejected token if it was chosen, else -1. Both are 0 outside the vocabulary.
    """
    score = _scores(p_ptr, p_offset, token, inside, p_least, p_last, temperature, FILTERED)
    plain = _law(score, p_max, p_sum, alpha, width, False)
    mass = plain
    if rejected:
        if chosen >= 0:
            mass = tl.where(token == chosen, 0.0, plain)
        else:
            q_score = _scores(q_ptr, q_offset, token, inside, q_least, q_last, temperature, FILTERED)
            p = _law(score, p_max, p_sum, alpha, width, SIGMOID)
            q = _law(q_score, q_max, q_sum, alpha, width, SIGMOID)
            mass = tl.maximum(p - q, 0.0)
    return tl.where(inside, mass, 0.0), tl.where(inside, plain, 0.0)


@triton.jit
def decide_kernel(
    p_ptr,
    q_ptr,
    row_offset_ptr,
    least_ptr,
    last_ptr,
    token_ptr,
    uniform_ptr,
    max_ptr,
    sum_ptr,
    mass_ptr,
    plain_ptr,
    verdict_ptr,
    p_rows,
    V,
    gamma,
    tiles,
    tiles_per_part,
    temperature,
    alpha,
    width,
    FILTERED: tl.constexpr,
    SIGMOID: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (sequence, part). Writes the sums of its tiles; part 0 writes accepted tokens and the unusable row.

    Sequence b has target rows b·(γ + 1) … and draft rows p_rows + b·γ …. The unusable row is -1 if there is none; a
    draft row is counted from γ + 1 on.
    """
    b = tl.program_id(0)
    part = tl.program_id(1)
    first_p = b * (gamma + 1)
    first_q = p_rows + b * gamma
    accepted = tl.full((), 0, tl.int32)
    walking = 1
    bad = -1
    for i in range(gamma):
        if walking == 1:
            token = tl.load(token_ptr + b * gamma + i)
            uniform = tl.load(uniform_ptr + b * (gamma + 1) + i)
            p_offset = tl.load(row_offset_ptr + first_p + i)
            q_offset = tl.load(row_offset_ptr + first_q + i)
            p_least = 0.0
            p_last = 0
            q_least = 0.0
            q_last = 0
            if FILTERED:
                p_least = tl.load(least_ptr + first_p + i)
                p_last = tl.load(last_ptr + first_p + i)
                q_least = tl.load(least_ptr + first_q + i)
                q_last = tl.load(last_ptr + first_q + i)
            # a chosen token is judged by the softmax, whatever judges the drawn ones
            exact = q_offset < 0
            q = tl.full((), 1.0, tl.float32)
            score = _scores(p_ptr, p_offset, token, token < V, p_least, p_last, temperature, FILTERED)
            p_max, p_sum = _combined(max_ptr, sum_ptr, first_p + i, PARTS)
            p = _law(score, p_max, p_sum, alpha, width, False)
            if (p_sum > 0.0) == 0:
                bad = i
            if exact == 0:
                if SIGMOID:
                    p = _law(score, p_max, p_sum, alpha, width, True)
                q_score = _scores(q_ptr, q_offset, token, token < V, q_least, q_last, temperature, FILTERED)
                if SIGMOID:
                    q = _law(q_score, 0.0, 1.0, alpha, width, True)
                else:
                    q_max, q_sum = _combined(max_ptr, sum_ptr, first_q + i, PARTS)
                    q = _law(q_score, q_max, q_sum, alpha, width, False)
                    if (q_sum > 0.0) == 0:
                        bad = gamma + 1 + i
            if (p == p) == 0:
                bad = i
            if (q == q) == 0:
                bad = gamma + 1 + i
            if uniform * q.to(tl.float64) < p.to(tl.float64):
                accepted += 1
            else:
                walking = 0
            if bad >= 0:
                walking = 0
    rejected = accepted < gamma
    row = first_p + accepted
    draft = first_q + tl.minimum(accepted, gamma - 1)
    p_offset = tl.load(row_offset_ptr + row)
    q_offset = tl.load(row_offset_ptr + draft)
    p_max, p_sum = _combined(max_ptr, sum_ptr, row, PARTS)
    if ((p_sum > 0.0) == 0) & (bad < 0):
        bad = accepted
    q_max = 0.0
    q_sum = 1.0
    chosen = -1
    if rejected:
        if q_offset < 0:
            chosen = tl.load(token_ptr + b * gamma + accepted).to(tl.int32)
        elif SIGMOID == 0:
            q_max, q_sum = _combined(max_ptr, sum_ptr, draft, PARTS)
    p_least = 0.0
    p_last = 0
    q_least = 0.0
    q_last = 0
    if FILTERED:
        p_least = tl.load(least_ptr + row)
        p_last = tl.load(last_ptr + row)
        q_least = tl.load(least_ptr + draft)
        q_last = tl.load(last_ptr + draft)
    for i in range(tiles_per_part):
        tile = part * tiles_per_part + i
        token = tile * TILE + tl.arange(0, TILE)
        mass, plain = _mass(
            p_ptr, p_offset, p_least, p_last, p_max, p_sum,
            q_ptr, q_offset, q_least, q_last, q_max, q_sum,
            token, token < V, temperature, alpha, width, rejected, chosen, FILTERED, SIGMOID,
        )  # fmt: skip
        if tile < tiles:
            tl.store(mass_ptr + b * tiles + tile, tl.sum(mass, 0))
            tl.store(plain_ptr + b * tiles + tile, tl.sum(plain, 0))
    if part == 0:
        tl.store(verdict_ptr + b * 3, accepted)
        tl.store(verdict_ptr + b * 3 + 2, bad)


@triton.jit
def _first_beyond(mass, goal, INDEX: tl.constexpr):
    """The first place whose cumulated mass exceeds ``goal``, and the mass before it; a place without mass never."""
    mass64 = mass.to(tl.float64)
    cdf = tl.cumsum(mass64, 0)
    place = tl.arange(0, INDEX)
    beyond = (cdf > goal) & (mass > 0.0)
    # rounding between the sums of tiles and a tile's own sum may leave the goal beyond the end
    latest = tl.max(tl.where(mass > 0.0, place, 0), 0)
    found = tl.minimum(tl.min(tl.where(beyond, place, INDEX), 0), latest)
    before = tl.sum(tl.where(place < found, mass64, 0.0), 0)
    return found, before


@triton.jit
def next_token_kernel(
    p_ptr,
    q_ptr,
    row_offset_ptr,
    least_ptr,
    last_ptr,
    token_ptr,
    uniform_ptr,
    max_ptr,
    sum_ptr,
    mass_ptr,
    plain_ptr,
    verdict_ptr,
    p_rows,
    V,
    gamma,
    tiles,
    temperature,
    alpha,
    width,
    FILTERED: tl.constexpr,
    SIGMOID: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Program (sequence). Inversion: the tile by its sums, the token by the masses of the tile, both in float64."""
    b = tl.program_id(0)
    accepted = tl.load(verdict_ptr + b * 3).to(tl.int32)
    uniform = tl.load(uniform_ptr + b * (gamma + 1) + gamma)
    rejected = accepted < gamma
    row = b * (gamma + 1) + accepted
    draft = p_rows + b * gamma + tl.minimum(accepted, gamma - 1)
    p_offset = tl.load(row_offset_ptr + row)
    q_offset = tl.load(row_offset_ptr + draft)
    p_max, p_sum = _combined(max_ptr, sum_ptr, row, PARTS)
    q_max = 0.0
    q_sum = 1.0
    chosen = -1
    if rejected:
        if q_offset < 0:
            chosen = tl.load(token_ptr + b * gamma + accepted).to(tl.int32)
        elif SIGMOID == 0:
            q_max, q_sum = _combined(max_ptr, sum_ptr, draft, PARTS)
    p_least = 0.0
    p_last = 0
    q_least = 0.0
    q_last = 0
    if FILTERED:
        p_least = tl.load(least_ptr + row)
        p_last = tl.load(last_ptr + row)
        q_least = tl.load(least_ptr + draft)
        q_last = tl.load(last_ptr + draft)
    tile_T = tl.arange(0, TILES)
    mass_T = tl.load(mass_ptr + b * tiles + tile_T, mask=tile_T < tiles, other=0.0)
    plain_T = tl.load(plain_ptr + b * tiles + tile_T, mask=tile_T < tiles, other=0.0)
    nothing_left = (tl.sum(mass_T, 0) > 0.0) == 0
    mass_T = tl.where(nothing_left, plain_T, mass_T)
    goal = uniform * tl.sum(mass_T.to(tl.float64), 0)
    tile, before = _first_beyond(mass_T, goal, TILES)
    token = tile * TILE + tl.arange(0, TILE)
    mass, plain = _mass(
        p_ptr, p_offset, p_least, p_last, p_max, p_sum,
        q_ptr, q_offset, q_least, q_last, q_max, q_sum,
        token, token < V, temperature, alpha, width, rejected, chosen, FILTERED, SIGMOID,
    )  # fmt: skip
    mass = tl.where(nothing_left, plain, mass)
    place, _ = _first_beyond(mass, goal - before, TILE)
    tl.store(verdict_ptr + b * 3 + 1, tile * TILE + place)
