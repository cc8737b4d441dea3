"""Attention in TT-Lang over chunks of keys with a running softmax (flash decode; Dao et al. 2022, algorithm 1).

A node takes one query head and one tile of rows after the other. Any row may see any keys: what it does not see has a
large negative number in the mask, so that a token tree is but a mask.

Legend: R row tiles, S key tiles in chunks of ``KEY_TILES``, E tiles of a head, H query heads, G KV heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.work import grid_for, tiles
from spec_sdk_backends.ttnn.operations import KEY_TILES


@cache
def _operation(grid: tuple[int, int], heads: int, kv_heads: int) -> Callable[..., None]:
    @ttl.operation(grid=grid)
    def flash_decode(q: Any, k: Any, v: Any, mask: Any, scale: Any, wide: Any, out: Any) -> None:
        row_tiles, head_tiles = tiles(q)[0], tiles(q)[1] // heads
        chunks, chunk = tiles(mask)[1] // KEY_TILES, KEY_TILES
        items, nodes = heads * row_tiles, grid[0] * grid[1]
        shared = heads // kv_heads

        q_dfb = ttl.make_dataflow_buffer_like(q, shape=(1, head_tiles), block_count=2)
        k_dfb = ttl.make_dataflow_buffer_like(k, shape=(chunk, head_tiles), block_count=2)
        v_dfb = ttl.make_dataflow_buffer_like(v, shape=(chunk, head_tiles), block_count=2)
        mask_dfb = ttl.make_dataflow_buffer_like(mask, shape=(1, chunk), block_count=2)
        scale_dfb = ttl.make_dataflow_buffer_like(scale, shape=(1, 1), block_count=2)
        score_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, chunk), block_count=2)
        weight_dfb = ttl.make_dataflow_buffer_like(mask, shape=(1, chunk), block_count=2)
        max_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, 1), block_count=2)
        shrink_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, 1), block_count=2)
        sum_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, 1), block_count=2)
        o_dfb = ttl.make_dataflow_buffer_like(wide, shape=(1, head_tiles), block_count=2)
        out_dfb = ttl.make_dataflow_buffer_like(out, shape=(1, head_tiles), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            node_column, node_row = ttl.node(dims=2)
            for item in range(node_row * grid[0] + node_column, items, nodes):
                row, head = item // heads, item % heads
                at, kv = head * head_tiles, head // shared * head_tiles
                with q_dfb.reserve() as q_block, scale_dfb.reserve() as scale_block:
                    q_copy = ttl.copy(q[row : row + 1, at : at + head_tiles], q_block)
                    scale_copy = ttl.copy(scale[0, 0], scale_block)
                    q_copy.wait()
                    scale_copy.wait()
                for number in range(chunks):
                    first = number * chunk
                    with k_dfb.reserve() as k_block, mask_dfb.reserve() as mask_block, v_dfb.reserve() as v_block:
                        k_copy = ttl.copy(k[first : first + chunk, kv : kv + head_tiles], k_block)
                        mask_copy = ttl.copy(mask[row : row + 1, first : first + chunk], mask_block)
                        v_copy = ttl.copy(v[first : first + chunk, kv : kv + head_tiles], v_block)
                        k_copy.wait()
                        mask_copy.wait()
                        v_copy.wait()

        @ttl.compute()
        def attend() -> None:
            node_column, node_row = ttl.node(dims=2)
            for _ in range(node_row * grid[0] + node_column, items, nodes):
                with q_dfb.wait() as q_block, scale_dfb.wait() as scale_block:
                    for number in range(chunks):
                        with k_dfb.wait() as k_block, mask_dfb.wait() as mask_block, score_dfb.reserve() as score:
                            scales = ttl.block.broadcast(scale_block, dims=[-2, -1], shape=(1, chunk))
                            score.store(q_block @ ttl.block.transpose(k_block) * scales + mask_block)
                        with score_dfb.wait() as score, v_dfb.wait() as v_block:
                            largest = ttl.math.reduce_max(score, dims=[-1], shape=(1, 1))
                            if number == 0:
                                with max_dfb.reserve() as max_block:
                                    max_block.store(largest)
                            else:
                                with (
                                    max_dfb.wait() as max_before,
                                    max_dfb.reserve() as max_block,
                                    shrink_dfb.reserve() as shrink,
                                ):
                                    max_block.store(ttl.math.max(max_before, largest))
                                    shrink.store(ttl.math.exp(max_before - ttl.math.max(max_before, largest)))
                            with max_dfb.wait() as max_block:
                                maxima = ttl.block.broadcast(max_block, dims=[-1], shape=(1, chunk))
                                weight = ttl.math.exp(score - maxima)
                                total = ttl.math.reduce_sum(weight, dims=[-1], shape=(1, 1))
                                with weight_dfb.reserve() as weight_block:
                                    weight_block.store(weight)
                                if number < chunks - 1:
                                    with max_dfb.reserve() as max_again:
                                        max_again.store(max_block)
                            with weight_dfb.wait() as weight_block:
                                if number == 0:
                                    with sum_dfb.reserve() as sum_block, o_dfb.reserve() as o_block:
                                        sum_block.store(total)
                                        o_block.store(weight_block @ v_block)
                                else:
                                    with (
                                        shrink_dfb.wait() as shrink,
                                        sum_dfb.wait() as sum_before,
                                        o_dfb.wait() as o_before,
                                        sum_dfb.reserve() as sum_block,
                                        o_dfb.reserve() as o_block,
                                    ):
                                        shrinks = ttl.block.broadcast(shrink, dims=[-1], shape=(1, head_tiles))
                                        sum_block.store(sum_before * shrink + total)
                                        o_block.store(o_before * shrinks + weight_block @ v_block)
                    with sum_dfb.wait() as sum_block, o_dfb.wait() as o_block, out_dfb.reserve() as out_block:
                        sums = ttl.block.broadcast(sum_block, dims=[-1], shape=(1, head_tiles))
                        out_block.store(o_block / sums)

        @ttl.datamovement()
        def write() -> None:
            node_column, node_row = ttl.node(dims=2)
            for item in range(node_row * grid[0] + node_column, items, nodes):
                row, at = item // heads, item % heads * head_tiles
                with out_dfb.wait() as out_block:
                    ttl.copy(out_block, out[row : row + 1, at : at + head_tiles]).wait()

    return flash_decode


def flash_decode(q: Any, k: Any, v: Any, mask: Any, scale: Any, wide: Any, out: Any, heads: int, kv_heads: int) -> None:
    """Write softmax(q · kᵀ · scale + mask) · v of all heads to ``out``, over as many keys as the mask has columns.

    ``scale``: a tile whose first value counts; ``wide``: a tensor in the dtype of scores and sums.
    """
    _operation(grid_for(heads * tiles(q)[0]), heads, kv_heads)(q, k, v, mask, scale, wide, out)
