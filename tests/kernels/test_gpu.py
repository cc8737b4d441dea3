"""The compiled kernel on a GPU: half precision and large trees. Skipped without one.

Legend: N queries (tree nodes), P prefix, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import RequestRows
from tests.kernels.dense_attention import (
    ancestors,
    case,
    chain,
    dense_attention,
    ends,
    random_tree,
    relative_error,
    star,
    wide_forest,
)

pytest.importorskip("triton")

from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
from spec_sdk_backends.tree_attention import cached_tree_attention, tree_attention
from spec_sdk_backends.triton_ops import TritonOps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("nodes", [1, 16, 300])
def test_half_precision(nodes: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
    parents, prefix = random_tree(nodes, seed=2), 777
    it = case(2, nodes, 2, 4, head_dim, prefix + nodes, device)
    q_BNHD, k_BGSD, v_BGSD = (x.to(dtype) for x in (it.q_BNHD, it.k_BGSD, it.v_BGSD))
    end_T = torch.tensor(ends(parents), dtype=torch.int32, device=device)
    expected = dense_attention(q_BNHD.cpu(), k_BGSD.cpu(), v_BGSD.cpu(), ancestors(parents, prefix))
    for splits in (None, 1, 4):
        out = tree_attention(q_BNHD, k_BGSD, v_BGSD, end_T, prefix, splits=splits)
        assert relative_error(out, expected) < 1e-2


def pass_over(
    prefixes: list[int], trees: list[list[int]], head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, PassCache]:
    """Queries [2, B, N, 8, D], and two layers of a cache with 2 KV heads, requests in slots from the last on."""
    slots, nodes = len(trees) + 1, max(map(len, trees))
    capacity = max(prefixes) + nodes + 30
    k_LSGCD, v_LSGCD = torch.randn(2, 2, slots, 2, capacity, head_dim, device=device).to(dtype)
    requests = [
        RequestRows.tree(slots - 1 - b, prefix, parents, [0] * len(parents), ends(parents))
        for b, (prefix, parents) in enumerate(zip(prefixes, trees, strict=True))
    ]
    q_LBNHD = torch.randn(2, len(trees), nodes, 8, head_dim, device=device).to(dtype)
    return q_LBNHD, PassCache(k_LSGCD, v_LSGCD, PassInputs.of("tree", requests, device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("nodes", [1, 16, 100])
def test_a_pass_in_half_precision(nodes: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
    prefixes, trees = [777, 0, 3000], [random_tree(nodes, seed=1), star(max(1, nodes // 2)), chain(nodes)]
    q_LBNHD, cache = pass_over(prefixes, trees, head_dim, dtype, device)
    k_LSGCD, v_LSGCD = cache.layers(0, 2)
    for splits in (None, 1, 5):
        out = cached_tree_attention(q_LBNHD, k_LSGCD, v_LSGCD, cache.inputs, splits)
        for b, (prefix, parents) in enumerate(zip(prefixes, trees, strict=True)):
            live = len(parents)
            k_LGKD, v_LGKD = (x[:, len(trees) - b, :, : prefix + live].cpu() for x in (k_LSGCD, v_LSGCD))
            expected = dense_attention(q_LBNHD[:, b, :live].cpu(), k_LGKD, v_LGKD, ancestors(parents, prefix))
            assert relative_error(out[:, b, :live], expected) < 1e-2
            assert not out[:, b, live:].any()


def test_a_captured_pass_reads_its_lengths_from_the_device(device: torch.device) -> None:
    """Captured for some prefixes and slots, replayed for others."""
    trees = [random_tree(20, seed=1), star(12)]
    q_LBNHD, cache = pass_over([1000, 64], trees, 128, torch.bfloat16, device)
    _, other = pass_over([131, 940], trees[::-1], 128, torch.bfloat16, device)
    held, ops = cache.inputs, TritonOps()
    ops.cached_attention(q_LBNHD, cache, 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.cached_attention(q_LBNHD, cache, 0)
    for name in ("slot_B", "prefix_B", "write_at_B", "live_B", "key_end_BT"):
        getattr(held, name).copy_(getattr(other.inputs, name))
    graph.replay()
    expected = Ops().cached_attention(q_LBNHD, cache.of_pass(other.inputs), 0)
    assert relative_error(captured, expected.double()) < 1e-2


@pytest.mark.parametrize("shape", [chain, star, wide_forest, lambda nodes: random_tree(nodes, seed=4)])
@pytest.mark.parametrize("nodes", [1024, 4096, 16384])
def test_large_trees(nodes: int, shape: Callable[[int], list[int]], device: torch.device) -> None:
    """Rows at both ends and in the middle are compared: the dense mask of all of them would not fit."""
    parents, prefix = shape(nodes), 10
    it = case(1, nodes, 1, 2, 64, prefix + nodes, device)
    q_BNHD, k_BGSD, v_BGSD = (x.bfloat16() for x in (it.q_BNHD, it.k_BGSD, it.v_BGSD))
    end_T = torch.tensor(ends(parents), dtype=torch.int32, device=device)
    out = tree_attention(q_BNHD, k_BGSD, v_BGSD, end_T, prefix)
    rows = [*range(70), *range(nodes // 2, nodes // 2 + 70), *range(nodes - 70, nodes)]
    visible_NS = torch.zeros(len(rows), prefix + nodes, dtype=torch.bool)
    visible_NS[:, :prefix] = True
    for i, walker in enumerate(rows):
        while walker >= 0:
            visible_NS[i, prefix + walker] = True
            walker = parents[walker]
    expected = dense_attention(q_BNHD[:, rows].cpu(), k_BGSD.cpu(), v_BGSD.cpu(), visible_NS)
    assert relative_error(out[:, rows], expected) < 1e-2


def test_the_mask_takes_four_bytes_a_node(device: torch.device) -> None:
    """Besides the output a pass of 16,384 nodes allocates nothing that grows with N."""
    nodes = 16384
    it = case(1, nodes, 2, 1, 64, nodes, device)
    end_T = torch.tensor(ends(random_tree(nodes, seed=1)), dtype=torch.int32, device=device)
    assert end_T.numel() * end_T.element_size() == 4 * nodes
    tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end_T, 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end_T, 0)
    assert torch.cuda.max_memory_allocated() - before == out.numel() * out.element_size()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("nodes", "group", "head_dim"), [(1, 4, 128), (1, 3, 64), (24, 4, 96), (300, 2, 256)])
@pytest.mark.parametrize("prefix", [100, 256, 777, 9000])
def test_speculative_half_precision(
    prefix: int, nodes: int, group: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    """In one piece and in two, against float64; and the norms of the unrounded results."""
    parents, size = random_tree(nodes, seed=2), 128
    it = case(1, nodes, 2, group, head_dim, prefix + nodes, device)
    q_BNHD, k_BGSD, v_BGSD = (x.to(dtype) for x in (it.q_BNHD, it.k_BGSD, it.v_BGSD))
    end_T = torch.tensor(ends(parents), dtype=torch.int32, device=device)
    visible_NS = ancestors(parents, prefix)
    exact = dense_attention(q_BNHD.cpu(), k_BGSD.cpu(), v_BGSD.cpu(), visible_NS)
    visible_NS[:, size : max(size, prefix - size)] = False
    predicted = dense_attention(q_BNHD.cpu(), k_BGSD.cpu(), v_BGSD.cpu(), visible_NS)
    for splits in (None, 1, 7):
        tensors = (q_BNHD, k_BGSD, v_BGSD)
        whole = speculative_attention(*tensors, end_T, prefix, size, splits=splits)
        pieces = finish(predict_part(*tensors, end_T, prefix, size), *tensors, prefix, size, splits=splits)
        for out in (whole, pieces):
            assert relative_error(out.predicted_BNHD, predicted) < 1e-2
            assert relative_error(out.exact_BNHD, exact) < 1e-2
            assert relative_error(out.norm_sq_BN, exact.square().sum((2, 3))) < 1e-2
            if prefix <= 2 * size:
                assert torch.equal(out.predicted_BNHD, out.exact_BNHD) and not out.difference_sq_BN.any()
            else:
                assert relative_error(out.difference_sq_BN, (predicted - exact).square().sum((2, 3))) < 2e-2


def test_speculative_attention_in_a_graph_says_the_same_every_time(device: torch.device) -> None:
    """Captured once, replayed on new values; the sum of the norms over programs has one order, so one result."""
    prefix, size = 8192, 128
    it = case(1, 4, 8, 4, 128, prefix + 4, device)
    q_BNHD, k_BGSD, v_BGSD = (x.bfloat16() for x in (it.q_BNHD, it.k_BGSD, it.v_BGSD))
    end_T = torch.tensor(ends(star(4)), dtype=torch.int32, device=device)
    speculative_attention(q_BNHD, k_BGSD, v_BGSD, end_T, prefix, size)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = speculative_attention(q_BNHD, k_BGSD, v_BGSD, end_T, prefix, size)
    for _ in range(20):
        q_BNHD.normal_()
        graph.replay()
        eager = speculative_attention(q_BNHD, k_BGSD, v_BGSD, end_T, prefix, size)
        for field in ("predicted_BNHD", "exact_BNHD", "difference_sq_BN", "norm_sq_BN"):
            assert torch.equal(getattr(captured, field), getattr(eager, field)), field
