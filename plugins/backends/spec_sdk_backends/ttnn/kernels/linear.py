"""Linear layers in TT-Lang: x @ weight + bias, and silu(x @ gate) · (x @ up).

Every node computes blocks of columns of the output, a block of rows at a time, and adds up over blocks of the inner
dimension.

Legend: R row tiles, I inner tiles, O column tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import block_of, grid_for, tiles

MOST_ROWS, MOST_INNER, MOST_COLUMNS = 4, 8, 4
"""Tiles of a block: with these, in float32, all buffers of an operation fit into the memory of a node."""


@cache
def _linear(grid: tuple[int, int], biased: bool) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def linear(x: Any, weight: Any, bias: Any, wide: Any, out: Any) -> None:
        (row_tiles, inner_tiles), (_, column_tiles) = tiles(x), tiles(weight)
        r, k, c = (
            block_of(row_tiles, MOST_ROWS),
            block_of(inner_tiles, MOST_INNER),
            block_of(column_tiles, MOST_COLUMNS),
        )
        row_blocks, inner_blocks, column_blocks = row_tiles // r, inner_tiles // k, column_tiles // c
        nodes = grid[0] * grid[1]

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(r, k), block_count=2)
        weight_dfb = ttl.make_dataflow_buffer_like(weight, shape=(k, c), block_count=2)
        bias_dfb = ttl.make_dataflow_buffer_like(bias, shape=(1, c), block_count=2)
        sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(r, c), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(r, c), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                to = column * c
                for row in range(row_blocks):
                    for inner in range(inner_blocks):
                        with x_dfb.reserve() as x_block, weight_dfb.reserve() as weight_block:
                            x_copy = ttl.copy(x[row * r : (row + 1) * r, inner * k : (inner + 1) * k], x_block)
                            weight_copy = ttl.copy(weight[inner * k : (inner + 1) * k, to : to + c], weight_block)
                            x_copy.wait()
                            weight_copy.wait()
                    if biased:
                        with bias_dfb.reserve() as bias_block:
                            ttl.copy(bias[0:1, to : to + c], bias_block).wait()

        @ttl.compute()
        def multiply() -> None:
            node_column, node_row = ttl.node(dims=2)
            for _ in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for _ in range(row_blocks):
                    for inner in range(inner_blocks):
                        with x_dfb.wait() as x_block, weight_dfb.wait() as weight_block:
                            if inner == 0:
                                with sum_dfb.reserve() as sum_block:
                                    sum_block.store(x_block @ weight_block)
                            else:
                                with sum_dfb.wait() as before, sum_dfb.reserve() as sum_block:
                                    sum_block.store(before + x_block @ weight_block)
                    with sum_dfb.wait() as sum_block, out_dfb.reserve() as out_block:
                        if biased:
                            with bias_dfb.wait() as bias_block:
                                out_block.store(sum_block + ttl.block.broadcast(bias_block, dims=[0], shape=(r, c)))
                        else:
                            out_block.store(sum_block)

        @ttl.datamovement()
        def write() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for row in range(row_blocks):
                    with out_dfb.wait() as out_block:
                        ttl.copy(out_block, out[row * r : (row + 1) * r, column * c : (column + 1) * c]).wait()

    return linear


@cache
def _gated(grid: tuple[int, int]) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def gated(x: Any, gate: Any, up: Any, wide: Any, out: Any) -> None:
        (row_tiles, inner_tiles), (_, column_tiles) = tiles(x), tiles(gate)
        # two weights and two sums share what one has in a plain linear layer
        r, k, c = (
            block_of(row_tiles, MOST_ROWS),
            block_of(inner_tiles, MOST_INNER),
            block_of(column_tiles, MOST_COLUMNS // 2),
        )
        row_blocks, inner_blocks, column_blocks = row_tiles // r, inner_tiles // k, column_tiles // c
        nodes = grid[0] * grid[1]

        x_dfb = ttl.make_dataflow_buffer_like(x, shape=(r, k), block_count=2)
        gate_dfb = ttl.make_dataflow_buffer_like(gate, shape=(k, c), block_count=2)
        up_dfb = ttl.make_dataflow_buffer_like(up, shape=(k, c), block_count=2)
        gate_sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(r, c), block_count=2)
        up_sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(r, c), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(r, c), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                to = column * c
                for row in range(row_blocks):
                    for inner in range(inner_blocks):
                        with (
                            x_dfb.reserve() as x_block,
                            gate_dfb.reserve() as gate_block,
                            up_dfb.reserve() as up_block,
                        ):
                            x_copy = ttl.copy(x[row * r : (row + 1) * r, inner * k : (inner + 1) * k], x_block)
                            gate_copy = ttl.copy(gate[inner * k : (inner + 1) * k, to : to + c], gate_block)
                            up_copy = ttl.copy(up[inner * k : (inner + 1) * k, to : to + c], up_block)
                            x_copy.wait()
                            gate_copy.wait()
                            up_copy.wait()

        @ttl.compute()
        def multiply() -> None:
            node_column, node_row = ttl.node(dims=2)
            for _ in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for _ in range(row_blocks):
                    for inner in range(inner_blocks):
                        with (
                            x_dfb.wait() as x_block,
                            gate_dfb.wait() as gate_block,
                            up_dfb.wait() as up_block,
                        ):
                            if inner == 0:
                                with gate_sum_dfb.reserve() as gate_sum, up_sum_dfb.reserve() as up_sum:
                                    gate_sum.store(x_block @ gate_block)
                                    up_sum.store(x_block @ up_block)
                            else:
                                with (
                                    gate_sum_dfb.wait() as gate_before,
                                    up_sum_dfb.wait() as up_before,
                                    gate_sum_dfb.reserve() as gate_sum,
                                    up_sum_dfb.reserve() as up_sum,
                                ):
                                    gate_sum.store(gate_before + x_block @ gate_block)
                                    up_sum.store(up_before + x_block @ up_block)
                    with (
                        gate_sum_dfb.wait() as gate_sum,
                        up_sum_dfb.wait() as up_sum,
                        out_dfb.reserve() as out_block,
                    ):
                        out_block.store(ttl.math.silu(gate_sum) * up_sum)

        @ttl.datamovement()
        def write() -> None:
            node_column, node_row = ttl.node(dims=2)
            for column in range(node_row * grid[0] + node_column, column_blocks, nodes):
                for row in range(row_blocks):
                    with out_dfb.wait() as out_block:
                        ttl.copy(out_block, out[row * r : (row + 1) * r, column * c : (column + 1) * c]).wait()

    return gated


def linear(x: Any, weight: Any, bias: Any, wide: Any, out: Any) -> None:
    """Write x @ weight, and the bias if it is not None, to ``out``; ``wide``: a tensor in the dtype of the sums."""
    column_tiles = tiles(weight)[1]
    grid = grid_for(column_tiles // block_of(column_tiles, MOST_COLUMNS))
    _linear(grid, bias is not None)(x, weight, wide if bias is None else bias, wide, out)


def gated(x: Any, gate: Any, up: Any, wide: Any, out: Any) -> None:
    """Write silu(x @ gate) · (x @ up) to ``out``; ``wide``: a tensor in the dtype of the sums."""
    column_tiles = tiles(gate)[1]
    grid = grid_for(column_tiles // block_of(column_tiles, MOST_COLUMNS // 2))
    _gated(grid)(x, gate, up, wide, out)
