"""The running softmax of flash decode in TT-Lang, as steps that the compute kernels of two operations share.

A running maximum m and sum l are columns: only column 0 of their tiles means anything. Output, m and l are in float32;
the weights of the softmax are rounded to the dtype of V before the product, as a matrix engine takes them.

Legend: ``rows``, ``width``: row tiles of the pass and tiles of a head, which a block of outputs has.
"""

from __future__ import annotations

from typing import Any

from ttl.sim import ttl


def add_keys(
    first: bool,
    score_block: Any,
    v_dfb: Any,
    weight_dfb: Any,
    o_dfb: Any,
    m_dfb: Any,
    l_dfb: Any,
    rows: int,
    width: int,
) -> None:
    """One tile of keys, of which ``score_block`` has the masked scores, into the running output, maximum and sum.

    ``first``: these begin with it.
    """
    largest = ttl.math.reduce_max(score_block, dims=[-1], shape=(rows, 1))
    if first:
        weights = ttl.math.exp(score_block - ttl.block.broadcast(largest, dims=[-1], shape=(rows, 1)))
        with weight_dfb.reserve() as weight_block:
            weight_block.store(weights)
        with (
            weight_dfb.wait() as weight_block,
            v_dfb.wait() as v_block,
            o_dfb.reserve() as o_next,
            m_dfb.reserve() as m_next,
            l_dfb.reserve() as l_next,
        ):
            o_next.store(weight_block @ v_block)
            l_next.store(ttl.math.reduce_sum(weights, dims=[-1], shape=(rows, 1)))
            m_next.store(largest)
        return
    with o_dfb.wait() as o_block, m_dfb.wait() as m_block, l_dfb.wait() as l_block:
        m_new = ttl.math.max(m_block, largest)
        weights = ttl.math.exp(score_block - ttl.block.broadcast(m_new, dims=[-1], shape=(rows, 1)))
        shrink = ttl.math.exp(m_block - m_new)
        with weight_dfb.reserve() as weight_block:
            weight_block.store(weights)
        with (
            weight_dfb.wait() as weight_block,
            v_dfb.wait() as v_block,
            o_dfb.reserve() as o_next,
            m_dfb.reserve() as m_next,
            l_dfb.reserve() as l_next,
        ):
            shrink_wide = ttl.block.broadcast(shrink, dims=[-1], shape=(rows, width))
            o_next.store(o_block * shrink_wide + weight_block @ v_block)
            l_next.store(l_block * shrink + ttl.math.reduce_sum(weights, dims=[-1], shape=(rows, 1)))
            m_next.store(m_new)


def add_part(
    o_part_dfb: Any, m_part_dfb: Any, l_part_dfb: Any, o_dfb: Any, m_dfb: Any, l_dfb: Any, rows: int, width: int
) -> None:
    """Another node's running output, maximum and sum, into this one's."""
    with (
        o_dfb.wait() as o_block,
        m_dfb.wait() as m_block,
        l_dfb.wait() as l_block,
        o_part_dfb.wait() as o_part,
        m_part_dfb.wait() as m_part,
        l_part_dfb.wait() as l_part,
    ):
        m_new = ttl.math.max(m_block, m_part)
        own, other = ttl.math.exp(m_block - m_new), ttl.math.exp(m_part - m_new)
        own_wide = ttl.block.broadcast(own, dims=[-1], shape=(rows, width))
        other_wide = ttl.block.broadcast(other, dims=[-1], shape=(rows, width))
        with o_dfb.reserve() as o_next, m_dfb.reserve() as m_next, l_dfb.reserve() as l_next:
            o_next.store(o_block * own_wide + o_part * other_wide)
            l_next.store(l_block * own + l_part * other)
            m_next.store(m_new)
