"""Drawing a token by inversion without a cumulated sum over the whole vocabulary.

Legend: V vocabulary, T tiles of it.
"""

from __future__ import annotations

import torch

TILE = 256
"""So small that its float32 sum loses nothing that shows: sums of tiles are cumulated in float64."""


def first_beyond(mass_V: torch.Tensor, uniform: float) -> int:
    """The first token whose cumulated mass exceeds ``uniform`` times the whole; -1 if there is no mass, or NaN.

    One pass over ``mass_V`` [V] (float32, need not sum to 1) for the sums of tiles, then one tile. Never a token of
    mass 0, whatever is lost to rounding between the two.
    """
    vocabulary = mass_V.shape[0]
    whole = vocabulary // TILE * TILE
    sum_T = mass_V[:whole].view(-1, TILE).sum(-1)
    if whole < vocabulary:
        sum_T = torch.cat((sum_T, mass_V[whole:].sum()[None]))
    cdf_T = sum_T.double().cumsum(0)
    total = float(cdf_T[-1])
    if not 0 < total < float("inf"):
        return -1
    goal = uniform * total
    tile = int(torch.searchsorted(cdf_T, goal, right=True))
    if tile >= cdf_T.shape[0]:
        tile = int(sum_T.nonzero()[-1])
    before = float(cdf_T[tile - 1]) if tile else 0.0
    part_V = mass_V[tile * TILE : (tile + 1) * TILE]
    cdf_V = part_V.double().cumsum(0)
    token = int(torch.searchsorted(cdf_V, goal - before, right=True))
    if token >= part_V.shape[0] or not float(part_V[token]) > 0:
        token = int(part_V.nonzero()[-1])
    return tile * TILE + token
