"""How the items of an operation are spread over the nodes of a device, and tiles over blocks."""

from __future__ import annotations

from typing import Any

COLUMNS, ROWS = 8, 8
"""Nodes of the smallest device, Wormhole's worker grid."""


def grid_for(items: int) -> tuple[int, int]:
    """A grid of as many nodes as there are items of work, up to a whole device."""
    return min(items, COLUMNS), min(-(-items // COLUMNS), ROWS)


def block_of(tiles: int, most: int) -> int:
    """The largest number of tiles that divides ``tiles`` and is no more than ``most``."""
    return max(size for size in range(1, most + 1) if tiles % size == 0)


def tiles(tensor: Any) -> tuple[int, int]:
    """Rows and columns of a device tensor, in tiles."""
    return tensor.shape[0] // 32, tensor.shape[1] // 32
