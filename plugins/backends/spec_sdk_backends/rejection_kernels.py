"""Rejection sampling on token trees in Triton: normalisers, decisions and next token, on the device.

Two kernels, one after the other on a stream, whatever the tree: no host decision, so they may be captured in a graph.

1. ``row_statistics_kernel``: per row of logits, the target's of every node and each draft distribution's once, the
   largest score and the sum of exp((score − largest) / temperature), online, by parts of the row that as many programs
   work on (FlashDecoding's split). It also sets the trees' counters to 0, for the second kernel.
2. ``decide_kernel``: every program walks the tree from the root and tries each node's draws in order. p and q at a
   token are two gathered logits and two pairs of statistics. After a rejection the node's next draw is judged by what
   is left of p, for which its sum over V must be known: each program then reads the rows itself, so that none has to
   wait for another, and all come to the same numbers. Then it sums, for its part of the vocabulary, what the next
   token is drawn from; and the distribution before the last rejection, for the case that this is nothing. The
   program of a tree that is done last finds the tile in which the next token lies, by the sums of all tiles, and the
   token in the tile: where the walk ended it knows itself.

The verdict is three integers a tree (last accepted node, next token, fault), which the host reads in one transfer.

**What is left of p** after j rejections at a node is never written down. It is worked out anew, tile by tile, from p
and the j draws before: max(0, · − q/left), or · without a chosen token, over the sum that this left. So no distribution
is written, and where the draws of a node share their distribution, as draws without replacement do, a sum reads two
rows whatever j is; a scratch row would be read and written with 4 bytes a token besides. A chosen token of at most one
half leaves 1 − p(x), which loses nothing to cancellation and reads nothing. What removals leave of q is summed in the
same pass. Removed tokens need no test when p is worked out: they were rejected, so p(x) < q(x) and nothing is left of p
at them, save where a rejection left nothing anywhere and p stayed as it was, which only rounding can bring about.

Bytes moved from device memory per tree of N nodes and S draft distributions, with e bytes per logit: (N + S)·V·e for
the statistics, (1 + l)·V·e for each rejection that another draw of its node follows, where l is the number of distinct
distributions of the node's draws so far (mostly 1), and as much for the row that the next token comes from (V·e after
an accepted leaf), with one tile more. On a chain of γ drawn tokens this is (2γ + 1)·V·e + 2·V·e.
The floor for exact decisions is that each row that a decision reads is read once for its normaliser, and the last one
once more. All N + S are read because which are needed is only known afterwards; where they hit the L2 cache the second
reading is free, and so is that of a rejection's rows by several programs at once. Written and read again: 8 bytes per
row and part, 8 per tile. A distribution that is given as probabilities has no statistics. Nor need draft distributions
under a sigmoid, which also sums nothing between the draws of a node, as it never renormalises: N·V·e + (1 + l)·V·e.

With top-k, top-p or min-p every row comes with the least kept logit and the last kept token among its equals, which
:mod:`spec_sdk_backends.kept_tokens_kernel` finds before the first kernel.

Rows lie where they lie: an offset counts elements from a tensor's first, and may be negative, so that what is captured
once with a tensor that never moves serves rows anywhere in memory.

Legend: B trees, D draws, J draws of one node, R rows, S parts of a row, T tiles, V vocabulary.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.logit_rows import NOWHERE, scores, weights

# fields of a draw, in elements from its place in the table
TOKEN = tl.constexpr(0)
RULE = tl.constexpr(1)
DISTRIBUTION_ROW = tl.constexpr(2)
P_OFFSET = tl.constexpr(3)
Q_OFFSET = tl.constexpr(4)
CHILD = tl.constexpr(5)
CHILD_FIRST = tl.constexpr(6)
CHILD_END = tl.constexpr(7)
EARLIER = tl.constexpr(8)
FIELDS = tl.constexpr(9)

# rules: how a draw came about, which says how it is judged
CHOSEN = tl.constexpr(0)
BY_SOFTMAX = tl.constexpr(1)
BY_SIGMOID = tl.constexpr(2)
BY_PROBABILITIES = tl.constexpr(3)


# what changes from tree to tree is not specialised on: a kernel of its own would take seconds to compile
@triton.jit(do_not_specialize=["p_rows", "trees"])
def row_statistics_kernel(
    p_ptr,
    q_ptr,
    row_offset_ptr,
    least_ptr,
    last_ptr,
    max_ptr,
    sum_ptr,
    counter_ptr,
    p_rows,
    trees,
    V,
    tiles_per_part,
    temperature,
    FILTERED: tl.constexpr,
    ALIGNED: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row, part). Rows below ``p_rows`` are the target's. One that is NOWHERE is passed over. ``counter`` [B]
    is set to 0 by the first ``trees`` rows' programs: there are no more trees than rows.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    if (part == 0) & (row < trees):
        tl.store(counter_ptr + row, 0)
    offset = tl.load(row_offset_ptr + row)
    if offset != NOWHERE:
        least, last = _kept(least_ptr, last_ptr, row, FILTERED)
        largest = float("-inf")
        total = 0.0
        for i in range(tiles_per_part):
            token = (part * tiles_per_part + i) * TILE + tl.arange(0, TILE)
            inside = token < V
            if row < p_rows:
                score = scores(p_ptr, offset, token, inside, least, last, FILTERED, ALIGNED)
            else:
                score = scores(q_ptr, offset, token, inside, least, last, FILTERED, ALIGNED)
            new = tl.maximum(largest, tl.max(score, 0))
            base = tl.where(new == float("-inf"), 0.0, new)
            total = total * weights(largest, base, temperature) + tl.sum(weights(score, base, temperature), 0)
            largest = new
        tl.store(max_ptr + row * PARTS + part, largest)
        tl.store(sum_ptr + row * PARTS + part, total)


@triton.jit
def _kept(least_ptr, last_ptr, row, FILTERED: tl.constexpr):
    """The row's least kept logit and the last kept token among its equals."""
    least = 0.0
    last = 0
    if FILTERED:
        least = tl.load(least_ptr + row)
        last = tl.load(last_ptr + row)
    return least, last


@triton.jit
def _combined(max_ptr, sum_ptr, row, temperature, PARTS: tl.constexpr):
    """Largest score of a row and the sum of its weights, from its parts; NaN or 0 if it is unusable."""
    part = tl.arange(0, PARTS)
    largest_S = tl.load(max_ptr + row * PARTS + part)
    sum_S = tl.load(sum_ptr + row * PARTS + part)
    largest = tl.max(largest_S, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    return base, tl.sum(sum_S * weights(largest_S, base, temperature), 0)


@triton.jit
def _softmax(score, largest, total, temperature):
    return tl.div_rn(weights(score, largest, temperature), total)


@triton.jit
def _or_sigmoid(value, score, rule, temperature, alpha, width, SIGMOID: tl.constexpr):
    """The sigmoid of the score over the temperature where the rule asks for it, else ``value``."""
    if SIGMOID:
        sigmoid = 1.0 / (1.0 + tl.exp(-tl.div_rn(tl.div_rn(score, temperature) - alpha, width)))
        sigmoid = tl.where(score == float("-inf"), 0.0, sigmoid)
        value = tl.where(rule == BY_SIGMOID, sigmoid, value)
    return value


@triton.jit
def _at(value_J, j, MOST: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, MOST) == j, value_J, 0.0), 0)


@triton.jit
def _distribution_of_logits(
    q_ptr, draw, token, inside, largest, total, least_ptr, last_ptr, temperature, alpha, width,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    least, last = _kept(least_ptr, last_ptr, tl.load(draw + DISTRIBUTION_ROW), FILTERED)
    score = scores(q_ptr, tl.load(draw + Q_OFFSET), token, inside, least, last, FILTERED, ALIGNED)
    q = _softmax(score, largest, total, temperature)
    return _or_sigmoid(q, score, tl.load(draw + RULE), temperature, alpha, width, SIGMOID)


@triton.jit
def _draft_distribution(
    q_ptr, given_ptr, draw, token, inside, largest, total,
    least_ptr, last_ptr, temperature, alpha, width,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, SIGMOID: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """q of the distribution that ``draw`` points to, in float32; 0 outside. ``total`` holds what removals left of q."""
    if GIVEN:
        if tl.load(draw + RULE) == BY_PROBABILITIES:
            q = tl.load(given_ptr + tl.load(draw + Q_OFFSET) + token, mask=inside, other=0.0)
            q = tl.div_rn(q, total)
        else:
            q = _distribution_of_logits(
                q_ptr, draw, token, inside, largest, total, least_ptr, last_ptr, temperature, alpha, width,
                FILTERED, ALIGNED, SIGMOID,
            )  # fmt: skip
    else:
        q = _distribution_of_logits(
            q_ptr, draw, token, inside, largest, total, least_ptr, last_ptr, temperature, alpha, width,
            FILTERED, ALIGNED, SIGMOID,
        )  # fmt: skip
    return q


@triton.jit
def _rejected(
    p, q_ptr, given_ptr, draw, token, inside, largest, total,
    least_ptr, last_ptr, temperature, alpha, width,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, SIGMOID: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """What the rejection of one draw leaves of ``p``, not renormalised; and its q, which is 0 of a chosen one."""
    rest = p
    q = tl.zeros_like(p)
    if tl.load(draw + RULE) == CHOSEN:
        rest = tl.where(token == tl.load(draw + TOKEN), 0.0, p)
    else:
        q = _draft_distribution(
            q_ptr, given_ptr, draw, token, inside, largest, total,
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN,
        )  # fmt: skip
        rest = tl.maximum(p - q, 0.0)
    return rest, q


@triton.jit
def _left(
    p, q_ptr, given_ptr, draws, count, token, inside, largest_J, total_J, mass_J,
    least_ptr, last_ptr, temperature, alpha, width,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, SIGMOID: tl.constexpr, GIVEN: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """``p`` after the rejection of the first ``count`` draws of a node, at one token or at a tile of them."""
    if MOST > 1:
        for j in range(count):
            rest, _ = _rejected(
                p, q_ptr, given_ptr, draws + j * FIELDS, token, inside,
                _at(largest_J, j, MOST), _at(total_J, j, MOST),
                least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN,
            )  # fmt: skip
            mass = _at(mass_J, j, MOST)
            # a rejection that leaves nothing is one of rounding: the distribution stays as it was
            if mass > 0.0:
                p = tl.div_rn(rest, mass)
    return p


@triton.jit
def _sums_after(
    p_ptr, p_offset, p_least, p_last, p_max, p_sum,
    q_ptr, given_ptr, draw_ptr, first, d, largest_J, total_J, mass_J, largest, total,
    least_ptr, last_ptr, V, temperature,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, GIVEN: tl.constexpr, MOST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sums over V of what the rejection of draw ``d`` leaves: of p; and of q without what is removed from it."""
    mass_W = tl.zeros((WIDE,), dtype=tl.float32)
    kept_W = tl.zeros((WIDE,), dtype=tl.float32)
    draw = draw_ptr + d * FIELDS
    for i in range(tl.cdiv(V, WIDE)):
        token = i * WIDE + tl.arange(0, WIDE)
        inside = token < V
        score = scores(p_ptr, p_offset, token, inside, p_least, p_last, FILTERED, ALIGNED)
        p = _left(
            _softmax(score, p_max, p_sum, temperature), q_ptr, given_ptr, draw_ptr + first * FIELDS, d - first,
            token, inside, largest_J, total_J, mass_J,
            least_ptr, last_ptr, temperature, 0.0, 1.0, FILTERED, ALIGNED, False, GIVEN, MOST,
        )  # fmt: skip
        rest, q = _rejected(
            p, q_ptr, given_ptr, draw, token, inside, largest, total,
            least_ptr, last_ptr, temperature, 0.0, 1.0, FILTERED, ALIGNED, False, GIVEN,
        )  # fmt: skip
        mass_W += tl.where(inside, rest, 0.0)
        removed = d
        while removed >= 0:
            q = tl.where(token == tl.load(draw_ptr + removed * FIELDS + TOKEN), 0.0, q)
            removed = tl.load(draw_ptr + removed * FIELDS + EARLIER)
        kept_W += tl.where(inside, q, 0.0)
    return tl.sum(mass_W, 0), tl.sum(kept_W, 0)


@triton.jit
def _next_masses(
    p_ptr, p_offset, p_least, p_last, p_max, p_sum,
    q_ptr, given_ptr, draws, count, token, inside, largest_J, total_J, mass_J,
    least_ptr, last_ptr, temperature, alpha, width,
    FILTERED: tl.constexpr, ALIGNED: tl.constexpr, SIGMOID: tl.constexpr, GIVEN: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """What the next token is drawn from, over the tokens of a tile, and the distribution if that is nothing; 0 outside.

    ``draws`` points to the node's draws, all ``count`` of which were rejected.
    """
    score = scores(p_ptr, p_offset, token, inside, p_least, p_last, FILTERED, ALIGNED)
    plain = _softmax(score, p_max, p_sum, temperature)
    mass = plain
    if count > 0:
        mass = _or_sigmoid(mass, score, tl.load(draws + RULE), temperature, alpha, width, SIGMOID)
        mass = _left(
            mass, q_ptr, given_ptr, draws, count - 1, token, inside, largest_J, total_J, mass_J,
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN, MOST,
        )  # fmt: skip
        # after a sigmoid the softmax, which has lost nothing
        plain = tl.where(tl.load(draws + RULE) == BY_SIGMOID, plain, mass)
        mass, _ = _rejected(
            mass, q_ptr, given_ptr, draws + (count - 1) * FIELDS, token, inside,
            _at(largest_J, count - 1, MOST), _at(total_J, count - 1, MOST),
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN,
        )  # fmt: skip
    return tl.where(inside, mass, 0.0), tl.where(inside, plain, 0.0)


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


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["draw_ptr", "root_ptr"])
def decide_kernel(
    p_ptr,
    q_ptr,
    given_ptr,
    row_offset_ptr,
    least_ptr,
    last_ptr,
    draw_ptr,
    root_ptr,
    uniform_ptr,
    max_ptr,
    sum_ptr,
    mass_ptr,
    plain_ptr,
    counter_ptr,
    verdict_ptr,
    rows,
    V,
    tiles,
    tiles_per_part,
    temperature,
    alpha,
    width,
    FILTERED: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIGMOID: tl.constexpr,
    GIVEN: tl.constexpr,
    MOST: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Program (tree, part). Writes the sums of its tiles, and counts itself in; the last one writes the verdict.

    ``root_ptr`` [B, 4]: root, where its draws begin and end, where those of the tree end. The fault is -1 if there is
    none, a row that is unusable, or ``rows`` + a draw that by its distribution could not have been made.
    """
    b = tl.program_id(0)
    part = tl.program_id(1)
    node = tl.load(root_ptr + b * 4)
    first = tl.load(root_ptr + b * 4 + 1)
    end = tl.load(root_ptr + b * 4 + 2)
    fault = tl.full((), -1, tl.int64)
    # of the rejected draws of the node: the distribution's statistics (with what removals left of it), and what the
    # rejections left of p and of q
    place_J = tl.arange(0, MOST)
    largest_J = tl.zeros((MOST,), dtype=tl.float32)
    total_J = tl.zeros((MOST,), dtype=tl.float32)
    mass_J = tl.zeros((MOST,), dtype=tl.float32)
    kept_J = tl.zeros((MOST,), dtype=tl.float32)
    d = first
    while d < end:
        draw = draw_ptr + d * FIELDS
        token = tl.load(draw + TOKEN)
        rule = tl.load(draw + RULE)
        distribution_row = tl.load(draw + DISTRIBUTION_ROW)
        p_offset = tl.load(draw + P_OFFSET)
        uniform = tl.load(uniform_ptr + d + b)
        p_least, p_last = _kept(least_ptr, last_ptr, node, FILTERED)
        p_max, p_sum = _combined(max_ptr, sum_ptr, node, temperature, PARTS)
        score = scores(p_ptr, p_offset, token, token < V, p_least, p_last, FILTERED, ALIGNED)
        p = _softmax(score, p_max, p_sum, temperature)
        p = _or_sigmoid(p, score, rule, temperature, alpha, width, SIGMOID)
        p = _left(
            p, q_ptr, given_ptr, draw_ptr + first * FIELDS, d - first, token, token < V, largest_J, total_J, mass_J,
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN, MOST,
        )  # fmt: skip
        largest = 0.0
        total = 1.0
        kept = 1.0
        q = tl.full((), 1.0, tl.float32)
        if rule != CHOSEN:
            if rule == BY_SOFTMAX:
                largest, total = _combined(max_ptr, sum_ptr, distribution_row, temperature, PARTS)
                if (total > 0.0) == 0:
                    fault = distribution_row
            if MOST > 1:
                earlier = tl.load(draw + EARLIER)
                if earlier >= 0:
                    kept = tl.abs(_at(kept_J, earlier - first, MOST))
                    total = total * kept
            q = _draft_distribution(
                q_ptr, given_ptr, draw, token, token < V, largest, total,
                least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN,
            )  # fmt: skip
            if MOST > 1:
                while earlier >= 0:
                    if (tl.load(draw_ptr + earlier * FIELDS + TOKEN) == token) & (
                        _at(kept_J, earlier - first, MOST) > 0.0
                    ):
                        q = tl.zeros_like(q)
                    earlier = tl.load(draw_ptr + earlier * FIELDS + EARLIER)
            if (q != q) & (fault < 0):
                fault = distribution_row
            if (rule != BY_SIGMOID) & ((q > 0.0) == 0) & (fault < 0):
                fault = rows + d
        if ((p_sum > 0.0) == 0) | (p != p):
            fault = node
        if fault >= 0:
            end = d
        elif uniform * q.to(tl.float64) < p.to(tl.float64):
            node = tl.load(draw + CHILD)
            first = tl.load(draw + CHILD_FIRST)
            end = tl.load(draw + CHILD_END)
            d = first
        else:
            here = place_J == d - first
            largest_J = tl.where(here, largest, largest_J)
            total_J = tl.where(here, total, total_J)
            if MOST > 1:
                mass = 1.0
                after = kept
                if (d + 1 < end) & (rule != BY_SIGMOID):
                    if (rule == CHOSEN) & (p <= 0.5):
                        mass = 1.0 - p
                    else:
                        mass, share = _sums_after(
                            p_ptr, p_offset, p_least, p_last, p_max, p_sum,
                            q_ptr, given_ptr, draw_ptr, first, d, largest_J, total_J, mass_J, largest, total,
                            least_ptr, last_ptr, V, temperature, FILTERED, ALIGNED, GIVEN, MOST, WIDE,
                        )  # fmt: skip
                        # q without its only token is q itself: the sign says that nothing was removed
                        after = tl.where(share > 0.0, share * kept, -kept)
                mass_J = tl.where(here, mass, mass_J)
                kept_J = tl.where(here, after, kept_J)
            d += 1
    p_offset = tl.load(row_offset_ptr + node)
    p_least, p_last = _kept(least_ptr, last_ptr, node, FILTERED)
    p_max, p_sum = _combined(max_ptr, sum_ptr, node, temperature, PARTS)
    if ((p_sum > 0.0) == 0) & (fault < 0):
        fault = node
    for i in range(tiles_per_part):
        tile = part * tiles_per_part + i
        token = tile * TILE + tl.arange(0, TILE)
        mass, plain = _next_masses(
            p_ptr, p_offset, p_least, p_last, p_max, p_sum,
            q_ptr, given_ptr, draw_ptr + first * FIELDS, end - first, token, token < V, largest_J, total_J, mass_J,
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN, MOST,
        )  # fmt: skip
        if tile < tiles:
            tl.store(mass_ptr + b * tiles + tile, tl.sum(mass, 0))
            tl.store(plain_ptr + b * tiles + tile, tl.sum(plain, 0))
    # all threads have stored before one of them counts the program in
    tl.debug_barrier()
    done = tl.atomic_add(counter_ptr + b, 1, sem="acq_rel", scope="gpu")
    if done == tl.num_programs(1) - 1:
        # inversion: the tile by its sums, the token by the masses of the tile, both in float64
        tile_T = tl.arange(0, TILES)
        sums = mass_ptr + b * tiles + tile_T
        mass_T = tl.load(sums, mask=tile_T < tiles, other=0.0, cache_modifier=".cg")
        plain_T = tl.load(plain_ptr + b * tiles + tile_T, mask=tile_T < tiles, other=0.0, cache_modifier=".cg")
        nothing_left = (tl.sum(mass_T, 0) > 0.0) == 0
        mass_T = tl.where(nothing_left, plain_T, mass_T)
        uniform = tl.load(uniform_ptr + tl.load(root_ptr + b * 4 + 3) + b)
        goal = uniform * tl.sum(mass_T.to(tl.float64), 0)
        tile, before = _first_beyond(mass_T, goal, TILES)
        token = tile * TILE + tl.arange(0, TILE)
        mass, plain = _next_masses(
            p_ptr, p_offset, p_least, p_last, p_max, p_sum,
            q_ptr, given_ptr, draw_ptr + first * FIELDS, end - first, token, token < V, largest_J, total_J, mass_J,
            least_ptr, last_ptr, temperature, alpha, width, FILTERED, ALIGNED, SIGMOID, GIVEN, MOST,
        )  # fmt: skip
        mass = tl.where(nothing_left, plain, mass)
        place, _ = _first_beyond(mass, goal - before, TILE)
        tl.store(verdict_ptr + b * 3, node)
        tl.store(verdict_ptr + b * 3 + 1, tile * TILE + place)
        tl.store(verdict_ptr + b * 3 + 2, fault)
