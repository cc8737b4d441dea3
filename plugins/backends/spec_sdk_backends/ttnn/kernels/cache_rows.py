"""Writing rows of a cache in TT-Lang, wherever in a tile they lie.

Whole tiles are all that can be copied, so a row gets to its place by a product: the tiles that it lies in become
``keep`` · what they hold + ``select`` @ the new rows, where ``keep`` is 0 in the rows that are replaced and ``select``
has a 1 in row r, column i where the i-th new row goes to row r. Of finite numbers that is exact.

Legend: T tiles of cache rows that are written, S tiles of source rows, C tiles of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import block_of, grid_for, tiles

MOST = 8
"""Column tiles of a block."""


@cache
def _operation(grid: tuple[int, int]) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def replace_rows(kept: Any, source: Any, keep: Any, select: Any, wide: Any) -> None:
        (row_tiles, column_tiles), (source_tiles, _) = tiles(kept), tiles(source)
        size = block_of(column_tiles, MOST)
        column_blocks, nodes = column_tiles // size, grid[0] * grid[1]

        kept_dfb = ttl.make_dataflow_buffer_like(kept, shape=(1, size), block_count=2)
        keep_dfb = ttl.make_dataflow_buffer_like(keep, shape=(1, 1), block_count=2)
        source_dfb = ttl.make_dataflow_buffer_like(source, shape=(1, size), block_count=2)
        select_dfb = ttl.make_dataflow_buffer_like(select, shape=(1, 1), block_count=2)
        sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, size), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(kept, shape=(1, size), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                to = column * size
                for row in range(row_tiles):
                    with kept_dfb.reserve() as kept_block, keep_dfb.reserve() as keep_block:
                        kept_copy = ttl.copy(kept[row : row + 1, to : to + size], kept_block)
                        keep_copy = ttl.copy(keep[row, 0], keep_block)
                        kept_copy.wait()
                        keep_copy.wait()
                    for at in range(source_tiles):
                        with source_dfb.reserve() as source_block, select_dfb.reserve() as select_block:
                            source_copy = ttl.copy(source[at : at + 1, to : to + size], source_block)
                            select_copy = ttl.copy(select[row, at], select_block)
                            source_copy.wait()
                            select_copy.wait()

        @ttl.compute()
        def merge() -> None:
            node_column, node_row = ttl.node(dims=2)
            for _ in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for _ in range(row_tiles):
                    with (
                        kept_dfb.wait() as kept_block,
                        keep_dfb.wait() as keep_block,
                        sum_dfb.reserve() as sum_block,
                    ):
                        sum_block.store(kept_block * ttl.block.broadcast(keep_block, dims=[-1], shape=(1, size)))
                    for _ in range(source_tiles):
                        with (
                            source_dfb.wait() as source_block,
                            select_dfb.wait() as select_block,
                            sum_dfb.wait() as before,
                            sum_dfb.reserve() as sum_block,
                        ):
                            sum_block.store(before + select_block @ source_block)
                    with sum_dfb.wait() as sum_block, out_dfb.reserve() as out_block:
                        out_block.store(sum_block)

        @ttl.datamovement()
        def write() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for row in range(row_tiles):
                    with out_dfb.wait() as out_block:
                        ttl.copy(out_block, kept[row : row + 1, column * size : (column + 1) * size]).wait()

    return replace_rows


def replace_rows(kept: Any, source: Any, keep: Any, select: Any, wide: Any) -> None:
    """Replace rows of ``kept``, the tiles of a cache that are written, by rows of ``source``, as told above.

    ``keep`` [rows of kept, 1] counts in its first column. ``source`` may be the same cache if no row moves backwards:
    what a tile gets then comes from itself or from tiles that are not written yet.
    """
    column_tiles = tiles(kept)[1]
    _operation(grid_for(column_tiles // block_of(column_tiles, MOST)))(kept, source, keep, select, wide)
