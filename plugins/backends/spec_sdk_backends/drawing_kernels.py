"""Drawing a token from a row of logits in Triton: two launches and one read, where torch takes a dozen launches and
waits for several of them.

1. ``tile_masses_kernel``: a program to a tile of the vocabulary, its largest logit and the sum of weights beside it.
2. ``draw_kernel``: one program, which finds the tile in which the token lies by the masses of all tiles, in float64,
   and then the token in the tile.

Bytes moved: the row once, and one tile more.

Legend: J lanes of a tile, T tiles.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from spec_sdk_backends.logit_rows import scores, weights


@triton.jit
def _tile(logits_ptr, least_ptr, last_ptr, tile, V, FILTERED: tl.constexpr, TILE: tl.constexpr):
    """A tile's logits; -inf for what lies outside the row or is filtered out."""
    token_J = tile * TILE + tl.arange(0, TILE)
    least = 0.0
    last = 0
    if FILTERED:
        least, last = tl.load(least_ptr), tl.load(last_ptr)
    return scores(logits_ptr, 0, token_J, token_J < V, least, last, FILTERED, False)


@triton.jit
def tile_masses_kernel(
    logits_ptr,
    least_ptr,
    last_ptr,
    largest_ptr,
    mass_ptr,
    V,
    temperature,
    FILTERED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (tile): ``largest`` [T] and ``mass`` [T], float32; -inf and 0 of a tile that has nothing."""
    tile = tl.program_id(0)
    logit_J = _tile(logits_ptr, least_ptr, last_ptr, tile, V, FILTERED, TILE)
    # the largest of all but NaN, which makes the mass NaN
    largest = tl.max(logit_J, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(largest_ptr + tile, largest)
    tl.store(mass_ptr + tile, tl.sum(weights(logit_J, base, temperature), 0))


# a kernel for every number would be compiled in the middle of a request
@triton.jit(do_not_specialize=["number"])
def draw_kernel(
    logits_ptr,
    least_ptr,
    last_ptr,
    largest_ptr,
    mass_ptr,
    drawn_ptr,
    number,
    V,
    tiles,
    temperature,
    FILTERED: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """``drawn`` float64 [3]: the token, its probability, and whether others have any; the token is -1 for logits that
    are not usable. ``number``: the bits of a float64, one more than the random number.
    """
    tile_T = tl.arange(0, TILES)
    largest_T = tl.load(largest_ptr + tile_T, mask=tile_T < tiles, other=float("-inf"))
    mass_T = tl.load(mass_ptr + tile_T, mask=tile_T < tiles, other=0.0)
    largest = tl.max(largest_T, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weight_T = weights(largest_T, base, temperature)
    mass_T = (mass_T * weight_T).to(tl.float64)
    whole = tl.sum(mass_T, 0)
    usable = (largest > float("-inf")) & (largest < float("inf")) & (whole == whole)
    goal = (number.to(tl.float64, bitcast=True) - 1.0) * whole

    cdf_T = tl.cumsum(mass_T, 0)
    last_tile = tl.max(tl.where(mass_T > 0, tile_T, 0), 0)
    tile = tl.minimum(tl.sum((cdf_T <= goal).to(tl.int32), 0), last_tile)
    before = tl.sum(tl.where(tile_T < tile, mass_T, 0.0), 0)
    logit_J = _tile(logits_ptr, least_ptr, last_ptr, tile, V, FILTERED, TILE)
    mass_J = weights(logit_J, base, temperature).to(tl.float64)
    lane_J = tl.arange(0, TILE)
    last_lane = tl.max(tl.where(mass_J > 0, lane_J, 0), 0)
    # two sums of the same in another order: a lane without mass must not come of it
    rest = tl.maximum(goal - before, 0.0)
    lane = tl.minimum(tl.sum((tl.cumsum(mass_J, 0) <= rest).to(tl.int32), 0), last_lane)

    own = tl.sum(tl.where(lane_J == lane, mass_J, 0.0), 0)
    in_tile = tl.sum(((mass_J > 0) & (lane_J != lane)).to(tl.int32), 0)
    elsewhere = tl.sum(((mass_T > 0) & (tile_T != tile)).to(tl.int32), 0)
    tl.store(drawn_ptr, tl.where(usable, tile * TILE + lane, -1).to(tl.float64))
    tl.store(drawn_ptr + 1, own / whole)
    tl.store(drawn_ptr + 2, (in_tile + elsewhere).to(tl.float64))
