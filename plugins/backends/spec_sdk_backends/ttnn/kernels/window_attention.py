"""``partial`` of speculative flash decode in TT-Lang: attention over the first and the last keys, read first.

What it writes is the prediction, which can be sent on at once, and the softmax statistics with which
:mod:`~spec_sdk_backends.ttnn.kernels.rest_attention` goes on (ALSpec, Alg. 3, lines 14 to 17). A node takes one query
head after the other, all rows of a request together.

Legend: R rows in whole tiles, H query heads, G KV heads, E padded head dim, C keys that a cache has room for, W keys of
the window's tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.online_softmax import add_keys
from spec_sdk_backends.ttnn.kernels.work import ROWS, tiles


@cache
def _operation(nodes: int, heads: int, kv_heads: int) -> Callable[..., None]:
    @ttl.operation(grid=(1, nodes))
    def window_attention(
        q: Any,
        k: Any,
        v: Any,
        mask: Any,
        scale: Any,
        o: Any,
        largest: Any,
        total: Any,
        predicted: Any,
        key_tiles: Sequence[int],
    ) -> None:
        rows, width = tiles(q)[0], tiles(q)[1] // heads
        shared = heads // kv_heads

        q_dfb = ttl.make_dataflow_buffer_like(q, shape=(rows, width), block_count=2)
        k_dfb = ttl.make_dataflow_buffer_like(k, shape=(1, width), block_count=2)
        v_dfb = ttl.make_dataflow_buffer_like(v, shape=(1, width), block_count=2)
        mask_dfb = ttl.make_dataflow_buffer_like(mask, shape=(rows, 1), block_count=2)
        scale_dfb = ttl.make_dataflow_buffer_like(scale, shape=(1, 1), block_count=1)
        weight_dfb = ttl.make_dataflow_buffer_like(v, shape=(rows, 1), block_count=2)
        o_dfb = ttl.make_dataflow_buffer_like(o, shape=(rows, width), block_count=2)
        m_dfb = ttl.make_dataflow_buffer_like(largest, shape=(rows, 1), block_count=2)
        l_dfb = ttl.make_dataflow_buffer_like(total, shape=(rows, 1), block_count=2)
        o_out_dfb = ttl.make_dataflow_buffer_like(o, shape=(rows, width), block_count=2)
        m_out_dfb = ttl.make_dataflow_buffer_like(largest, shape=(rows, 1), block_count=2)
        l_out_dfb = ttl.make_dataflow_buffer_like(total, shape=(rows, 1), block_count=2)
        predicted_dfb = ttl.make_dataflow_buffer_like(predicted, shape=(rows, width), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            _, node = ttl.node(dims=2)
            with scale_dfb.reserve() as scale_block:
                ttl.copy(scale[0, 0], scale_block).wait()
            for head in range(node, heads, nodes):
                at, kv = head * width, head // shared * width
                with q_dfb.reserve() as q_block:
                    ttl.copy(q[0:rows, at : at + width], q_block).wait()
                for column, tile in enumerate(key_tiles):
                    with k_dfb.reserve() as k_block, mask_dfb.reserve() as mask_block, v_dfb.reserve() as v_block:
                        k_copy = ttl.copy(k[tile : tile + 1, kv : kv + width], k_block)
                        mask_copy = ttl.copy(mask[0:rows, column : column + 1], mask_block)
                        v_copy = ttl.copy(v[tile : tile + 1, kv : kv + width], v_block)
                        k_copy.wait()
                        mask_copy.wait()
                        v_copy.wait()

        @ttl.compute()
        def attend() -> None:
            _, node = ttl.node(dims=2)
            with scale_dfb.wait() as scale_block:
                for _ in range(node, heads, nodes):
                    with q_dfb.wait() as q_block:
                        for number in range(len(key_tiles)):
                            with k_dfb.wait() as k_block, mask_dfb.wait() as mask_block:
                                scales = ttl.block.broadcast(scale_block, dims=[-2, -1], shape=(rows, 1))
                                score = q_block @ ttl.block.transpose(k_block) * scales + mask_block
                                add_keys(number == 0, score, v_dfb, weight_dfb, o_dfb, m_dfb, l_dfb, rows, width)
                    with (
                        o_dfb.wait() as o_block,
                        m_dfb.wait() as m_block,
                        l_dfb.wait() as l_block,
                        o_out_dfb.reserve() as o_out,
                        m_out_dfb.reserve() as m_out,
                        l_out_dfb.reserve() as l_out,
                        predicted_dfb.reserve() as predicted_block,
                    ):
                        normalised = o_block / ttl.block.broadcast(l_block, dims=[-1], shape=(rows, width))
                        predicted_block.store(normalised)
                        o_out.store(normalised)
                        m_out.store(m_block)
                        l_out.store(l_block)

        @ttl.datamovement()
        def write() -> None:
            _, node = ttl.node(dims=2)
            for head in range(node, heads, nodes):
                at = head * width
                with predicted_dfb.wait() as predicted_block:
                    ttl.copy(predicted_block, predicted[0:rows, at : at + width]).wait()
                with o_out_dfb.wait() as o_block, m_out_dfb.wait() as m_block, l_out_dfb.wait() as l_block:
                    o_copy = ttl.copy(o_block, o[0:rows, at : at + width])
                    m_copy = ttl.copy(m_block, largest[0:rows, head : head + 1])
                    l_copy = ttl.copy(l_block, total[0:rows, head : head + 1])
                    o_copy.wait()
                    m_copy.wait()
                    l_copy.wait()

    return window_attention


def window_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    o: Any,
    largest: Any,
    total: Any,
    predicted: Any,
    key_tiles: Sequence[int],
    heads: int,
    kv_heads: int,
) -> None:
    """Attention over the tiles ``key_tiles`` of the keys, of all heads.

    Read: ``q`` [R, H·E], ``k`` and ``v`` [C, G·E]; ``mask`` [R, W], added to the scores: each row must see a key;
    ``scale``, a tile whose first value counts. Written: ``predicted`` [R, H·E], and in float32 the same as ``o`` with
    the statistics ``largest`` and ``total`` [R, H·32], of each head in the first column of its tile.
    """
    operation = _operation(min(heads, ROWS), heads, kv_heads)
    operation(q, k, v, mask, scale, o, largest, total, predicted, key_tiles)
