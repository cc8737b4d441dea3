"""Rows of the vocabulary's length in pieces that torch works on without waking its threads.

On the CPU torch hands an elementwise operation to all threads from 32,768 elements on. A row of logits takes 5 to 40 us
on one thread, and waking a sleeping thread costs more than its half of that. On other devices a row is one piece.

Legend: V vocabulary, T tiles of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import torch

TILE = 256
"""So small that its float32 sum loses nothing that shows: sums of tiles are cumulated in float64."""
PIECE = 126 * TILE
"""The most whole tiles that are fewer than 32,768 elements."""


def pieces(*rows: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The rows [V], cut alike: views of at most PIECE elements on the CPU, the rows themselves elsewhere."""
    count = piece_count(rows[0])
    return zip(*(row.chunk(count) for row in rows), strict=True) if count > 1 else iter((rows,))


def exceeding(p_V: torch.Tensor, q_V: torch.Tensor, out_V: torch.Tensor) -> torch.Tensor:
    """max(p - q, 0), written to ``out_V``, which may be either of them."""
    for p, q, out in pieces(p_V, q_V, out_V):
        torch.sub(p, q, out=out).clamp_min_(0.0)
    return out_V


def largest(logits_V: torch.Tensor) -> float:
    """NaN if there is one."""
    tops = [float(part.amax()) for (part,) in pieces(logits_V)]
    # max() would pass over a NaN that is not its first argument
    return sum(tops) if any(isnan(top) for top in tops) else max(tops)


def total(mass_V: torch.Tensor) -> float:
    return sum(float(mass.sum()) for (mass,) in pieces(mass_V))


def tile_sums(mass_V: torch.Tensor, less_V: torch.Tensor | None = None) -> torch.Tensor:
    """Sums [T] over tiles of ``mass_V``, or of max(mass - less, 0), of which no more than a piece is written."""
    vocabulary = mass_V.shape[0]
    whole = vocabulary // TILE
    if not whole and vocabulary:
        return (mass_V if less_V is None else (mass_V - less_V).clamp_min_(0.0)).sum().view(1)
    sum_T = mass_V.new_empty(-(-vocabulary // TILE))
    count = piece_count(mass_V)
    if count == 1:
        if less_V is not None:
            mass_V, less_V = (mass_V - less_V).clamp_min_(0.0), None
        torch.sum(mass_V[: whole * TILE].view(whole, TILE), -1, out=sum_T[:whole])
    else:
        rows = [mass_V] if less_V is None else [mass_V, less_V]
        tiles = [row_V[: whole * TILE].view(whole, TILE).chunk(count) for row_V in rows]
        spare = mass_V.new_empty(tiles[0][0].shape) if less_V is not None else None
        for out, part, *less in zip(sum_T[:whole].chunk(count), *tiles, strict=True):
            if spare is not None:
                part = torch.sub(part, less[0], out=spare[: part.shape[0]]).clamp_min_(0.0)
            torch.sum(part, -1, out=out)
    if whole * TILE < vocabulary:
        last = mass_V[whole * TILE :]
        sum_T[whole] = last.sum() if less_V is None else (last - less_V[whole * TILE :]).clamp_min_(0.0).sum()
    return sum_T


def piece_count(row_V: torch.Tensor) -> int:
    """How many pieces a row [V] is cut into; ``chunk`` cuts rows of tiles alike."""
    return -(-row_V.shape[0] // PIECE) if row_V.device.type == "cpu" else 1
