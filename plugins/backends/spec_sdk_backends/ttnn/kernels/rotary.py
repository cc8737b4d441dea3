"""Rotary positions in TT-Lang, in the half-split layout: every head's two halves are whole tiles.

Legend: R row tiles, H heads of two times ``half`` tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import grid_for, tiles


@cache
def _operation(grid: tuple[int, int]) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def rotary(x: Any, cos: Any, sin: Any, out: Any) -> None:
        row_tiles, column_tiles = tiles(x)
        half = tiles(cos)[1] // 2
        heads = column_tiles // (2 * half)
        items, nodes = row_tiles * heads, grid[0] * grid[1]

        first_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, half), block_count=2)
        second_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, half), block_count=2)
        cos_dfb = ttl.make_dataflow_buffer_like(cos, shape=(1, half), block_count=2)
        sin_dfb = ttl.make_dataflow_buffer_like(sin, shape=(1, half), block_count=2)
        first_out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, half), block_count=2)
        second_out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, half), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            node_column, node_row = ttl.node(dims=2)
            for item in range(node_row * grid[0] + node_column, items, nodes):
                row, head = item // heads, item % heads * 2 * half
                with (
                    first_dfb.reserve() as first_block,
                    second_dfb.reserve() as second_block,
                    cos_dfb.reserve() as cos_block,
                    sin_dfb.reserve() as sin_block,
                ):
                    first_copy = ttl.copy(x[row : row + 1, head : head + half], first_block)
                    second_copy = ttl.copy(x[row : row + 1, head + half : head + 2 * half], second_block)
                    cos_copy = ttl.copy(cos[row : row + 1, 0:half], cos_block)
                    sin_copy = ttl.copy(sin[row : row + 1, 0:half], sin_block)
                    first_copy.wait()
                    second_copy.wait()
                    cos_copy.wait()
                    sin_copy.wait()

        @ttl.compute()
        def rotate() -> None:
            node_column, node_row = ttl.node(dims=2)
            for _ in range(node_row * grid[0] + node_column, items, nodes):
                with (
                    first_dfb.wait() as first_block,
                    second_dfb.wait() as second_block,
                    cos_dfb.wait() as cos_block,
                    sin_dfb.wait() as sin_block,
                    first_out_dfb.reserve() as first_out,
                    second_out_dfb.reserve() as second_out,
                ):
                    first_out.store(first_block * cos_block - second_block * sin_block)
                    second_out.store(second_block * cos_block + first_block * sin_block)

        @ttl.datamovement()
        def write() -> None:
            node_column, node_row = ttl.node(dims=2)
            for item in range(node_row * grid[0] + node_column, items, nodes):
                row, head = item // heads, item % heads * 2 * half
                with first_out_dfb.wait() as first_out, second_out_dfb.wait() as second_out:
                    first_copy = ttl.copy(first_out, out[row : row + 1, head : head + half])
                    second_copy = ttl.copy(second_out, out[row : row + 1, head + half : head + 2 * half])
                    first_copy.wait()
                    second_copy.wait()

    return rotary


def rotary(x: Any, cos: Any, sin: Any, out: Any) -> None:
    """Write every head of x, rotated by its row's cosines and sines, to ``out``. Of those the first half is read."""
    (row_tiles, column_tiles), (_, head_tiles) = tiles(x), tiles(cos)
    _operation(grid_for(row_tiles * (column_tiles // head_tiles)))(x, cos, sin, out)
