"""Masks and the attention over a cache and a tree, against dense attention computed per path.

Legend: B batch, N queries, H query heads, G KV heads, D head dim, S keys, P prefix, T tree slots.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.contracts import PartialAttention
from spec_sdk.ops import PLAIN, AttentionSpec, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.tree import TreeBuilder
from tests.tree.random_trees import ancestors_or_self, builders

CPU = torch.device("cpu")
H, D = 6, 8


def random_qkv(queries: int, keys: int, kv_heads: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    q_BNHD = torch.randn((1, queries, H, D), generator=rng)
    k_BGSD, v_BGSD = (torch.randn((1, kv_heads, keys, D), generator=rng) for _ in range(2))
    return q_BNHD, k_BGSD, v_BGSD


specs = st.builds(
    AttentionSpec,
    scale=st.sampled_from([None, 0.5]),
    softcap=st.sampled_from([None, 2.0]),
    window=st.one_of(st.none(), st.integers(1, 12)),
    sinks=st.sampled_from([None, tuple(0.7 * head - 2.0 for head in range(H))]),
)


def in_window(seen_by_N: list[list[int]], position_S: list[int], query_N: list[int], window: int | None) -> None:
    """Leaves of the keys that each query sees those less than ``window`` positions before it."""
    if window is not None:
        for seen, query in zip(seen_by_N, query_N, strict=True):
            seen[:] = [key for key in seen if position_S[query] - position_S[key] < window]


def attention_by_hand(
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    seen_by_N: list[list[int]],
    spec: AttentionSpec = PLAIN,
) -> torch.Tensor:
    """For every query and head, softmax over just the keys it sees: no mask, no shared heads, float64."""
    o_BNHD = torch.zeros_like(q_BNHD, dtype=torch.float64)
    heads_per_group = H // k_BGSD.shape[1]
    for query, seen in enumerate(seen_by_N):
        for head in range(H):
            k_SD, v_SD = (x_BGSD[0, head // heads_per_group, seen].double() for x_BGSD in (k_BGSD, v_BGSD))
            score_S = k_SD @ q_BNHD[0, query, head].double() * (spec.scale or D**-0.5)
            if spec.softcap is not None:
                score_S = spec.softcap * torch.tanh(score_S / spec.softcap)
            if spec.sinks is not None:
                score_S = torch.cat((score_S, score_S.new_tensor([spec.sinks[head]])))
            weight_S = score_S.softmax(-1)[: len(seen)]
            o_BNHD[0, query, head] = weight_S @ v_SD
    return o_BNHD


def assert_close(given: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(given.double(), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(builders(max_adds=14), st.integers(0, 9), st.sampled_from([1, 2, 3, 6]), specs, st.integers(0, 2**31))
def test_a_closed_tree(builder: TreeBuilder, prefix: int, kv_heads: int, spec: AttentionSpec, seed: int) -> None:
    tree = builder.build().tree
    mask = AttentionMask.tree(prefix, tree.end_N, CPU)
    above = ancestors_or_self(list(tree.parent_N))
    assert mask.visible_NT().tolist() == [[above[i][j] for i in range(tree.size)] for j in range(tree.size)]
    seen_by_N = [
        [*range(prefix), *(prefix + i for i in range(tree.size) if above[i][query])] for query in range(tree.size)
    ]
    position_S = [*range(prefix), *(prefix + depth for depth in tree.depth_N)]
    in_window(seen_by_N, position_S, [prefix + query for query in range(tree.size)], spec.window)
    q_BNHD, k_BGSD, v_BGSD = random_qkv(tree.size, prefix + tree.size, kv_heads, seed)
    expected = attention_by_hand(q_BNHD, k_BGSD, v_BGSD, seen_by_N, spec)
    assert_close(Ops().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec), expected)


@settings(max_examples=60, deadline=None)
@given(builders(max_adds=14), st.data(), st.integers(0, 9), specs, st.integers(0, 2**31))
def test_the_youngest_nodes_of_a_growing_tree(
    builder: TreeBuilder, data: st.DataObject, prefix: int, spec: AttentionSpec, seed: int
) -> None:
    """Slots in creation order; the queries are the last few of them."""
    queries = data.draw(st.integers(1, builder.size))
    start, end = builder.intervals()
    mask = AttentionMask.growing_tree(prefix, start, end, queries, CPU)
    above = ancestors_or_self(builder.parent)
    seen_by_N = [
        [*range(prefix), *(prefix + i for i in range(builder.size) if above[i][query])]
        for query in range(builder.size - queries, builder.size)
    ]
    position_S = [*range(prefix), *(prefix + depth for depth in builder.depth)]
    youngest = range(prefix + builder.size - queries, prefix + builder.size)
    in_window(seen_by_N, position_S, list(youngest), spec.window)
    q_BNHD, k_BGSD, v_BGSD = random_qkv(queries, prefix + builder.size, 2, seed)
    assert (mask.queries, mask.keys) == (queries, prefix + builder.size)
    expected = attention_by_hand(q_BNHD, k_BGSD, v_BGSD, seen_by_N, spec)
    assert_close(Ops().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec), expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 9), st.sampled_from([1, 2, 6]), specs, st.integers(0, 2**31))
def test_a_causal_chain(length: int, prefix: int, kv_heads: int, spec: AttentionSpec, seed: int) -> None:
    q_BNHD, k_BGSD, v_BGSD = random_qkv(length, prefix + length, kv_heads, seed)
    mask = AttentionMask.chain(prefix, length, CPU)
    seen_by_N = [list(range(prefix + query + 1)) for query in range(length)]
    keys = list(range(prefix + length))
    in_window(seen_by_N, keys, keys[prefix:], spec.window)
    expected = attention_by_hand(q_BNHD, k_BGSD, v_BGSD, seen_by_N, spec)
    assert_close(Ops().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec), expected)


@settings(max_examples=60, deadline=None)
@given(builders(max_adds=10), st.integers(0, 9), st.data(), st.integers(0, 2**31))
def test_partial_attentions_combine_to_the_whole(
    builder: TreeBuilder, prefix: int, data: st.DataObject, seed: int
) -> None:
    """However the keys are divided in three, also where a query sees none of a part's keys."""
    tree = builder.build().tree
    mask = AttentionMask.tree(prefix, tree.end_N, CPU)
    q_BNHD, k_BGSD, v_BGSD = random_qkv(tree.size, mask.keys, 2, seed)
    part_S = torch.tensor([data.draw(st.integers(0, 2)) for _ in range(mask.keys)])
    bias_NS = torch.nn.functional.pad(mask.bias_NT(torch.float32), (prefix, 0))
    ops = Ops()

    def part(number: int) -> PartialAttention:
        keys = (part_S == number).nonzero()[:, 0]
        if not len(keys):
            # no keys at all: attention over one that nobody sees
            hidden_NS = torch.full((tree.size, 1), float("-inf"))
            return ops.partial_attention(q_BNHD, k_BGSD[:, :, :1], v_BGSD[:, :, :1], hidden_NS)
        return ops.partial_attention(q_BNHD, k_BGSD[:, :, keys], v_BGSD[:, :, keys], bias_NS[:, keys])

    first, second, third = (part(number) for number in range(3))
    exact = ops.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask).double()
    for whole in (
        ops.combine(ops.combine(first, second), third),
        ops.combine(third, ops.combine(second, first)),
    ):
        assert_close(whole.o_BNHD, exact)
        everything = ops.partial_attention(q_BNHD, k_BGSD, v_BGSD, bias_NS)
        torch.testing.assert_close(whole.m_BNH, everything.m_BNH)
        torch.testing.assert_close(whole.l_BNH, everything.l_BNH, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [PLAIN, AttentionSpec(softcap=2.0), AttentionSpec(sinks=tuple(float(head) for head in range(H)))],
    ids=["plain", "capped", "sinks"],
)
def test_a_prompts_first_chunk(spec: AttentionSpec) -> None:
    """Which torch's causal kernel computes of layers that attend plainly."""
    q_BNHD, k_BGSD, v_BGSD = random_qkv(9, 9, 2, seed=3)
    seen_by_N = [list(range(query + 1)) for query in range(9)]
    found = Ops().tree_attention(q_BNHD, k_BGSD, v_BGSD, AttentionMask.chain(0, 9, CPU), spec)
    assert_close(found, attention_by_hand(q_BNHD, k_BGSD, v_BGSD, seen_by_N, spec))
