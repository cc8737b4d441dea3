"""``combine`` of speculative flash decode in TT-Lang: the keys between, merged with the window's attention; the norms.

The workers of a row of the grid share the keys of one query head after the other. Worker 0 gets the others' parts
through pipes, merges them and the window's, and takes the norms of the difference between prediction and result
(ALSpec, Alg. 3, lines 19 to 24). With s the share of the keys between in the softmax, Â - A = s (Â - their attention),
which loses no digits where Â is close to A.

Legend: R rows in whole tiles, H query heads, G KV heads, E padded head dim, C keys that a cache has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ttl.sim import ttl

from spec_sdk_backends.ttnn.kernels.online_softmax import add_keys, add_part
from spec_sdk_backends.ttnn.kernels.work import ROWS, tiles


@cache
def _operation(workers: int, nodes: int, heads: int, kv_heads: int) -> Callable[..., None]:
    others = range(1, workers)
    to_first = ttl.PipeNet([ttl.Pipe((w, n), (0, n)) for n in range(nodes) for w in others]) if workers > 1 else None

    @ttl.operation(grid=(workers, nodes))
    def rest_attention(
        q: Any,
        k: Any,
        v: Any,
        edges: Any,
        scale: Any,
        window_o: Any,
        window_largest: Any,
        window_total: Any,
        exact: Any,
        difference_sq: Any,
        norm_sq: Any,
        shares: Sequence[Sequence[int]],
    ) -> None:
        rows, width = tiles(q)[0], tiles(q)[1] // heads
        shared = heads // kv_heads
        ends = (shares[0][0], shares[-1][-1])

        q_dfb = ttl.make_dataflow_buffer_like(q, shape=(rows, width), block_count=2)
        k_dfb = ttl.make_dataflow_buffer_like(k, shape=(1, width), block_count=2)
        v_dfb = ttl.make_dataflow_buffer_like(v, shape=(1, width), block_count=2)
        edge_dfb = ttl.make_dataflow_buffer_like(edges, shape=(1, 1), block_count=2)
        scale_dfb = ttl.make_dataflow_buffer_like(scale, shape=(1, 1), block_count=1)
        weight_dfb = ttl.make_dataflow_buffer_like(v, shape=(rows, 1), block_count=2)
        o_dfb = ttl.make_dataflow_buffer_like(window_o, shape=(rows, width), block_count=2)
        m_dfb = ttl.make_dataflow_buffer_like(window_largest, shape=(rows, 1), block_count=2)
        l_dfb = ttl.make_dataflow_buffer_like(window_total, shape=(rows, 1), block_count=2)
        # a part on its way to worker 0, and what worker 0 is sent or reads
        o_part_dfb = ttl.make_dataflow_buffer_like(window_o, shape=(rows, width), block_count=2)
        m_part_dfb = ttl.make_dataflow_buffer_like(window_largest, shape=(rows, 1), block_count=2)
        l_part_dfb = ttl.make_dataflow_buffer_like(window_total, shape=(rows, 1), block_count=2)
        exact_dfb = ttl.make_dataflow_buffer_like(exact, shape=(rows, width), block_count=2)
        difference_dfb = ttl.make_dataflow_buffer_like(difference_sq, shape=(rows, 1), block_count=2)
        norm_dfb = ttl.make_dataflow_buffer_like(norm_sq, shape=(rows, 1), block_count=2)

        @ttl.datamovement()
        def read() -> None:
            worker, node = ttl.node(dims=2)
            with scale_dfb.reserve() as scale_block:
                ttl.copy(scale[0, 0], scale_block).wait()
            for head in range(node, heads, nodes):
                at, kv = head * width, head // shared * width
                with q_dfb.reserve() as q_block:
                    ttl.copy(q[0:rows, at : at + width], q_block).wait()
                for tile in shares[worker]:
                    with k_dfb.reserve() as k_block, v_dfb.reserve() as v_block:
                        k_copy = ttl.copy(k[tile : tile + 1, kv : kv + width], k_block)
                        v_copy = ttl.copy(v[tile : tile + 1, kv : kv + width], v_block)
                        k_copy.wait()
                        v_copy.wait()
                    for edge in range(2):
                        if tile == ends[edge]:
                            with edge_dfb.reserve() as edge_block:
                                ttl.copy(edges[0:1, edge : edge + 1], edge_block).wait()
                if worker == 0:
                    if to_first is not None:

                        def receive(pipe: Any) -> None:
                            with (
                                o_part_dfb.reserve() as o_block,
                                m_part_dfb.reserve() as m_block,
                                l_part_dfb.reserve() as l_block,
                            ):
                                ttl.copy(pipe, o_block).wait()
                                ttl.copy(pipe, m_block).wait()
                                ttl.copy(pipe, l_block).wait()

                        to_first.if_dst(receive)
                    with (
                        o_part_dfb.reserve() as o_block,
                        m_part_dfb.reserve() as m_block,
                        l_part_dfb.reserve() as l_block,
                    ):
                        o_copy = ttl.copy(window_o[0:rows, at : at + width], o_block)
                        m_copy = ttl.copy(window_largest[0:rows, head : head + 1], m_block)
                        l_copy = ttl.copy(window_total[0:rows, head : head + 1], l_block)
                        o_copy.wait()
                        m_copy.wait()
                        l_copy.wait()

        @ttl.compute()
        def attend() -> None:
            worker, node = ttl.node(dims=2)
            with scale_dfb.wait() as scale_block:
                for _ in range(node, heads, nodes):
                    with q_dfb.wait() as q_block:
                        for number, tile in enumerate(shares[worker]):
                            with k_dfb.wait() as k_block:
                                scales = ttl.block.broadcast(scale_block, dims=[-2, -1], shape=(rows, 1))
                                score = q_block @ ttl.block.transpose(k_block) * scales
                                for edge in range(2):
                                    if tile == ends[edge]:
                                        with edge_dfb.wait() as edge_block:
                                            score = score + ttl.block.broadcast(edge_block, dims=[0], shape=(rows, 1))
                                add_keys(number == 0, score, v_dfb, weight_dfb, o_dfb, m_dfb, l_dfb, rows, width)
                    if worker > 0:
                        with (
                            o_dfb.wait() as o_block,
                            m_dfb.wait() as m_block,
                            l_dfb.wait() as l_block,
                            o_part_dfb.reserve() as o_part,
                            m_part_dfb.reserve() as m_part,
                            l_part_dfb.reserve() as l_part,
                        ):
                            o_part.store(o_block)
                            m_part.store(m_block)
                            l_part.store(l_block)
                        continue
                    for _ in others:
                        add_part(o_part_dfb, m_part_dfb, l_part_dfb, o_dfb, m_dfb, l_dfb, rows, width)
                    with (
                        o_dfb.wait() as o_block,
                        m_dfb.wait() as m_block,
                        l_dfb.wait() as l_block,
                        o_part_dfb.wait() as predicted,
                        m_part_dfb.wait() as window_m_block,
                        l_part_dfb.wait() as window_l_block,
                        exact_dfb.reserve() as exact_block,
                        difference_dfb.reserve() as difference_block,
                        norm_dfb.reserve() as norm_block,
                    ):
                        m_both = ttl.math.max(m_block, window_m_block)
                        rest = l_block * ttl.math.exp(m_block - m_both)
                        share = rest / (rest + window_l_block * ttl.math.exp(window_m_block - m_both))
                        between = o_block / ttl.block.broadcast(l_block, dims=[-1], shape=(rows, width))
                        shares_wide = ttl.block.broadcast(share, dims=[-1], shape=(rows, width))
                        difference = (predicted - between) * shares_wide
                        attention = predicted - difference
                        exact_block.store(attention)
                        difference_block.store(ttl.math.reduce_sum(difference * difference, dims=[-1], shape=(rows, 1)))
                        norm_block.store(ttl.math.reduce_sum(attention * attention, dims=[-1], shape=(rows, 1)))

        @ttl.datamovement()
        def write() -> None:
            worker, node = ttl.node(dims=2)
            for head in range(node, heads, nodes):
                at = head * width
                if worker > 0:
                    assert to_first is not None

                    def send(pipe: Any) -> None:
                        with o_part_dfb.wait() as o_block, m_part_dfb.wait() as m_block, l_part_dfb.wait() as l_block:
                            ttl.copy(o_block, pipe).wait()
                            ttl.copy(m_block, pipe).wait()
                            ttl.copy(l_block, pipe).wait()

                    to_first.if_src(send)
                    continue
                with exact_dfb.wait() as exact_block:
                    ttl.copy(exact_block, exact[0:rows, at : at + width]).wait()
                with difference_dfb.wait() as difference_block, norm_dfb.wait() as norm_block:
                    difference_copy = ttl.copy(difference_block, difference_sq[0:rows, head : head + 1])
                    norm_copy = ttl.copy(norm_block, norm_sq[0:rows, head : head + 1])
                    difference_copy.wait()
                    norm_copy.wait()

    return rest_attention


def rest_attention(
    q: Any,
    k: Any,
    v: Any,
    edges: Any,
    scale: Any,
    window_o: Any,
    window_largest: Any,
    window_total: Any,
    exact: Any,
    difference_sq: Any,
    norm_sq: Any,
    shares: Sequence[Sequence[int]],
    heads: int,
    kv_heads: int,
) -> None:
    """Attention over all keys, from the window's and the key tiles ``shares``, one share for each worker.

    Read, beside what ``window_attention`` reads: what that wrote, and ``edges`` [32, 64], whose first row masks what
    belongs to the window in the first and in the last of these tiles. Written: ``exact`` [R, H·E]; in float32
    ``difference_sq`` and ``norm_sq`` [R, H·32], ‖Â - A‖² and ‖A‖² of each head in the first column of its tile.
    """
    operation = _operation(len(shares), min(heads, ROWS), heads, kv_heads)
    window = (window_o, window_largest, window_total)
    operation(q, k, v, edges, scale, *window, exact, difference_sq, norm_sq, shares)
