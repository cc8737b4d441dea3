"""RMS norm in TT-Lang (Zhang and Sennrich 2019, eq. 4).

Legend: R row tiles, P parts of a row (heads), each with M tiles of columns, of which a block holds some.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import block_of, grid_for, tiles

MOST = 8
"""Tiles of a row in a block."""


@cache
def _operation(grid: tuple[int, int], parts: int) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def rms_norm(x: Any, gain: Any, mean: Any, eps: Any, wide: Any, out: Any) -> None:
        row_tiles, _ = tiles(x)
        _, part_tiles = tiles(gain)
        size = block_of(part_tiles, MOST)
        blocks = part_tiles // size
        items, nodes = row_tiles * parts, grid[0] * grid[1]

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(1, size), block_count=2)
        gain_dfb = ttl.make_dataflow_buffer_like(gain, shape=(1, size), block_count=2)
        mean_dfb = ttl.make_dataflow_buffer_like(mean, shape=(1, 1), block_count=2)
        eps_dfb = ttl.make_dataflow_buffer_like(eps, shape=(1, 1), block_count=2)
        sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, 1), block_count=2)
        scale_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, 1), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, size), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            column, row = ttl.node(dims=2)
            for item in range(row * grid[0] + column, items, nodes):
                at, part = item // parts, item % parts * part_tiles
                for block in range(blocks):
                    first = part + block * size
                    with x_dfb.reserve() as x_block:
                        ttl.copy(x[at : at + 1, first : first + size], x_block).wait()
                with mean_dfb.reserve() as mean_block, eps_dfb.reserve() as eps_block:
                    mean_copy = ttl.copy(mean[0, 0], mean_block)
                    eps_copy = ttl.copy(eps[0, 0], eps_block)
                    mean_copy.wait()
                    eps_copy.wait()
                for block in range(blocks):
                    first = part + block * size
                    with x_dfb.reserve() as x_block, gain_dfb.reserve() as gain_block:
                        x_copy = ttl.copy(x[at : at + 1, first : first + size], x_block)
                        gain_copy = ttl.copy(gain[0:1, block * size : (block + 1) * size], gain_block)
                        x_copy.wait()
                        gain_copy.wait()

        @ttl.compute()
        def normalize() -> None:
            column, row = ttl.node(dims=2)
            for _ in range(row * grid[0] + column, items, nodes):
                for block in range(blocks):
                    with x_dfb.wait() as x_block:
                        squares = ttl.math.reduce_sum(x_block * x_block, dims=[-1], shape=(1, 1))
                        if block == 0:
                            with sum_dfb.reserve() as sum_block:
                                sum_block.store(squares)
                        else:
                            with sum_dfb.wait() as before, sum_dfb.reserve() as sum_block:
                                sum_block.store(before + squares)
                with (
                    mean_dfb.wait() as mean_block,
                    eps_dfb.wait() as eps_block,
                    sum_dfb.wait() as sum_block,
                    scale_dfb.reserve() as scale_block,
                ):
                    scale_block.store(ttl.math.rsqrt(sum_block * mean_block + eps_block))
                with scale_dfb.wait() as scale_block:
                    for _ in range(blocks):
                        with (
                            x_dfb.wait() as x_block,
                            gain_dfb.wait() as gain_block,
                            out_dfb.reserve() as out_block,
                        ):
                            scale = ttl.block.broadcast(scale_block, dims=[-1], shape=(1, size))
                            gains = ttl.block.broadcast(gain_block, dims=[0], shape=(1, size))
                            out_block.store(x_block * scale * gains)

        @ttl.datamovement()
        def write() -> None:
            column, row = ttl.node(dims=2)
            for item in range(row * grid[0] + column, items, nodes):
                at, part = item // parts, item % parts * part_tiles
                for block in range(blocks):
                    first = part + block * size
                    with out_dfb.wait() as out_block:
                        ttl.copy(out_block, out[at : at + 1, first : first + size]).wait()

    return rms_norm


def rms_norm(x: Any, gain: Any, mean: Any, eps: Any, wide: Any, out: Any) -> None:
    """Write x / sqrt(sum(x²) · mean + eps) · gain to ``out``, over each part of a row that is as long as the gain.

    ``mean`` and ``eps``: tiles filled with it; ``wide``: a tensor in the dtype that sums are kept in.
    """
    row_tiles, column_tiles = tiles(x)
    parts = column_tiles // tiles(gain)[1]
    _operation(grid_for(row_tiles * parts), parts)(x, gain, mean, eps, wide, out)
