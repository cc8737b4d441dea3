"""Drawing a token by inversion without a cumulated sum over the whole vocabulary.

Legend: K rows, V vocabulary, T tiles of it, I tokens of a tile.
"""

from __future__ import annotations

from bisect import bisect_right

import torch
import torch.nn.functional as F

from spec_sdk.ops.pieces import TILE, tile_sums


def first_beyond(mass_V: torch.Tensor, uniform: float, less_V: torch.Tensor | None = None) -> int:
    """The first token whose cumulated mass exceeds ``uniform`` times the whole; -1 if there is no mass, or NaN.

    ``mass_V`` [V] (float32) need not sum to 1. With ``less_V`` the mass is max(mass - less, 0), or ``mass_V`` itself
    where that is nothing. One pass for the sums of tiles, then one tile. Never a token of mass 0, whatever is lost to
    rounding between the two.
    """
    sum_T = tile_sums(mass_V, less_V)
    # lists, since a search in one costs less than the calls that torch would need, and on a device one transfer
    cdf_T: list[float] = sum_T.cumsum(0, dtype=torch.float64).tolist()
    whole = cdf_T[-1]
    if less_V is not None and whole == 0:
        return first_beyond(mass_V, uniform)
    if not 0 < whole < float("inf"):
        return -1
    goal = uniform * whole
    tile = bisect_right(cdf_T, goal)
    if tile == len(cdf_T):
        tile = int(sum_T.nonzero()[-1])
    before = cdf_T[tile - 1] if tile else 0.0
    inside = slice(tile * TILE, (tile + 1) * TILE)
    part_V = mass_V[inside] if less_V is None else (mass_V[inside] - less_V[inside]).clamp_min_(0.0)
    # a cdf that exceeds the goal where the one before it does not: that token has mass
    token = bisect_right(part_V.cumsum(0, dtype=torch.float64).tolist(), goal - before)
    if token == part_V.shape[0]:
        token = int(part_V.nonzero()[-1])
    return tile * TILE + token


def draw_rows(p_KV: torch.Tensor, uniform_K: torch.Tensor) -> torch.Tensor:
    """One token of each row of ``p_KV`` [K, V] by its number of ``uniform_K`` (float64), int64 [K]: what
    :func:`first_beyond` gives row by row, but for rounding where tiles are summed, and -1 where that does.

    It waits for no device, and no shape depends on values.
    """
    K, V = p_KV.shape
    tile_KTI = F.pad(p_KV, (0, -V % TILE)).view(K, -1, TILE)
    sum_KT = tile_KTI.sum(-1)
    cdf_KT = sum_KT.cumsum(-1, dtype=torch.float64)
    whole_K1 = cdf_KT[:, -1:]
    goal_K1 = uniform_K[:, None] * whole_K1
    tile_K1 = torch.minimum(torch.searchsorted(cdf_KT, goal_K1, right=True), last_with_mass(sum_KT))
    before_K1 = torch.where(tile_K1 > 0, cdf_KT.gather(1, (tile_K1 - 1).clamp_min(0)), 0.0)
    inside_KI = tile_KTI.gather(1, tile_K1[:, :, None].expand(K, 1, TILE))[:, 0]
    cdf_KI = inside_KI.cumsum(-1, dtype=torch.float64)
    place_K1 = torch.minimum(torch.searchsorted(cdf_KI, goal_K1 - before_K1, right=True), last_with_mass(inside_KI))
    usable_K1 = (whole_K1 > 0) & torch.isfinite(whole_K1)
    return torch.where(usable_K1, tile_K1 * TILE + place_K1, -1)[:, 0]


def last_with_mass(mass_KX: torch.Tensor) -> torch.Tensor:
    """The last place of each row that has any, [K, 1]; 0 where none has."""
    place_X = torch.arange(mass_KX.shape[1], device=mass_KX.device)
    return torch.where(mass_KX > 0, place_X, 0).amax(-1, keepdim=True)


def draw(p_V: torch.Tensor, uniform: float) -> int:
    """One token of ``p_V`` [V], which need not sum to 1. Raises ValueError if it has no mass."""
    token = first_beyond(p_V, uniform)
    if token < 0:
        raise ValueError(f"cannot draw a token: the probabilities sum to {float(p_V.sum())}")
    return token


def next_uniform(random: float | torch.Generator) -> float:
    """The number itself, or the generator's next one of [0, 1)."""
    if isinstance(random, torch.Generator):
        return float(torch.rand((), generator=random, dtype=torch.float64))
    return random
