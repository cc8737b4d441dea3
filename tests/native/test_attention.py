"""Native attention over the cache: against float64 by dense masks, and to the bit the same for a path however it lies.

Legend: L layers, B requests, N rows, H query heads, G KV heads, R = H/G, D head dim, S cache slots, C capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from spec_sdk.ops import PLAIN, AttentionSpec
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.tree import TreeBuilder
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.attention import MOST_ROWS, attends, attention
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.thread_waiting import ThreadWaiting
from tests.kernels.dense_attention import (
    ancestors,
    chain,
    dense_attention,
    depths,
    ends,
    in_window,
    random_tree,
    star,
)
from tests.support.threads import threads

L, G, S = 2, 2, 5
CPU = torch.device("cpu")


def tree(slot: int, prefix: int, parents: list[int]) -> tuple[RequestRows, torch.Tensor]:
    """A closed tree, and what its nodes see."""
    return RequestRows.tree(slot, prefix, parents, depths(parents), ends(parents)), ancestors(parents, prefix)


def growing(slot: int, prefix: int, parents: list[int], queries: int) -> tuple[RequestRows, torch.Tensor]:
    """A tree in creation order whose youngest nodes ask."""
    builder = TreeBuilder(7)
    for node, parent in enumerate(parents):
        builder.add(parent + 1, node, "chosen")
    start, end = builder.intervals()
    old, position = len(parents) - queries, [prefix + depth for depth in depths(parents)]
    rows = RequestRows(
        slot, prefix, prefix + old, [1] * queries, position[old:], start[1 + old :], start[1:], end[1:], position
    )
    return rows, ancestors(parents, prefix)[old:]


def block(slot: int, prefix: int, size: int) -> tuple[RequestRows, torch.Tensor]:
    """Rows that all see one another, as heads that draft a block have them."""
    order, position = range(size), range(prefix, prefix + size)
    rows = RequestRows(slot, prefix, prefix, [1] * size, position, order, [0] * size, [size] * size, position)
    return rows, torch.ones(size, prefix + size, dtype=torch.bool)


BATCHES: dict[str, tuple[PassKind, list[tuple[RequestRows, torch.Tensor]]]] = {
    "trees": ("tree", [tree(3, 70, random_tree(18, seed=1)), tree(0, 0, star(9)), tree(4, 300, chain(1))]),
    "plain steps": ("chain", [tree(2, 127, chain(1)), tree(4, 1, chain(1)), tree(1, 128, chain(1))]),
    "chunks": ("chain", [tree(1, 120, chain(12)), tree(4, 0, chain(5)), tree(0, 7, chain(16))]),
    "growing": (
        "growing",
        [growing(4, 5, [-1, -1, 0, 1, 0, 2, 3], 3), growing(1, 126, [-1] * 4, 4), growing(0, 64, [-1, *range(66)], 1)],
    ),
    "blocks": ("growing", [block(3, 70, 5), block(0, 0, 5), block(4, 2, 5)]),
    "one wide tree": ("tree", [tree(1, 250, random_tree(MOST_ROWS, seed=2))]),
    "one wide chain": ("chain", [tree(2, 230, chain(MOST_ROWS))]),
}
SINKS = tuple(math.remainder(1.3 * head, 5.0) for head in range(32))
SPECS = [
    PLAIN,
    AttentionSpec(window=3),
    AttentionSpec(scale=0.4, softcap=1.5, window=70),
    AttentionSpec(window=70, sinks=SINKS),
]


@pytest.fixture(params=["found", "without AMX"])
def _instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once with all instructions that the processor has, and where AMX is among them once without."""
    uses = library().spec_uses_amx()
    if request.param == "without AMX":
        if not uses:
            pytest.skip("no AMX here")
        library().spec_amx(0)
    yield
    library().spec_amx(uses)


Kept = tuple[torch.dtype, torch.dtype]
KEPT: list[Kept] = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
]
"""What rows are computed in, and what keys and values are kept in."""


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize(("R", "D"), [(3, 64), (1, 16), (5, 80), (9, 256)])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.usefixtures("_instructions")
def test_dense_float64(name: str, spec: AttentionSpec, R: int, D: int, kept: Kept) -> None:
    compare_with_float64(name, spec, R, D, kept)


def compare_with_float64(name: str, spec: AttentionSpec, R: int, D: int, kept: Kept) -> None:
    """Slots out of order, prefixes and trees of their own; columns that nobody may look at hold NaN."""
    dtype, cached = kept
    spec = replace(spec, sinks=spec.sinks and spec.sinks[: G * R])
    kind, batch = BATCHES[name]
    requests = [rows for rows, _ in batch]
    generator = torch.Generator().manual_seed(len(requests))
    inputs = PassInputs.of(kind, requests, CPU)
    # numbers that rounding leaves as they are: kernels may round queries to what keys are kept in
    q_LBNHD = torch.randn(L, inputs.batch, inputs.width, G * R, D, generator=generator).to(cached).to(dtype)
    capacity = max(r.prefix + len(r.key_end) for r in requests) + 17
    stored = [torch.full((L, S, G, capacity, D), float("nan"), dtype=cached) for _ in range(2)]
    for r in requests:
        keys = r.prefix + len(r.key_end)
        for storage in stored:
            storage[:, r.slot, :, :keys] = torch.randn(L, G, keys, D, generator=generator).to(cached)
    cache = PassCache(stored[0], stored[1], inputs)
    assert attends(q_LBNHD, stored[0])
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(attention(q_LBNHD, cache, 0, spec))
    assert torch.equal(*found)
    for b, (rows, visible_NS) in enumerate(batch):
        live, keys = len(rows.token), rows.prefix + len(rows.key_end)
        assert (found[0][:, b, live:] == 0).all()
        depth_T = [position - rows.prefix for position in rows.key_position]
        near_NS = in_window(visible_NS, rows.prefix, depth_T, spec.window)
        k, v = (storage[:, rows.slot, :, :keys] for storage in stored)
        expected = dense_attention(q_LBNHD[:, b, :live], k, v, near_NS, spec)
        off = (found[0][:, b, :live].double() - expected).abs()
        limit = 1e-5 * expected.abs() + 2e-6
        if dtype == torch.bfloat16:
            limit += 2**-8 * expected.abs() + 2e-4
        if cached == torch.bfloat16:
            # a weight that is rounded moves the result by a part of its value's distance to it
            weighted = dense_attention(q_LBNHD[:, b, :live], k, v.abs(), near_NS, spec)
            limit += 2**-8 * (weighted + expected.abs())
        assert (off <= limit).all()


PATHS = {"random": random_tree(40, seed=5), "chain": chain(MOST_ROWS), "star": star(40)}


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("prefix", [3, 100, 121, 128, 250])
@pytest.mark.usefixtures("_instructions")
def test_a_path_gets_the_same_bits_as_tree_or_as_prefix(prefix: int, shape: str, kept: Kept) -> None:
    compare_with_paths(prefix, PATHS[shape], kept, PLAIN)


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_path_gets_the_same_bits_within_a_window(kept: Kept) -> None:
    compare_with_paths(100, PATHS["random"], kept, AttentionSpec(window=50, softcap=2.0))


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_path_gets_the_same_bits_beside_sinks(kept: Kept) -> None:
    compare_with_paths(121, PATHS["random"], kept, AttentionSpec(sinks=SINKS[:6]))


def compare_with_paths(prefix: int, parents: list[int], kept: Kept, spec: AttentionSpec) -> None:
    """The last of a row's keys are nodes of a tree, in the middle of others; or all of them are committed."""
    N, H, D, generator = len(parents), 6, 64, torch.Generator().manual_seed(prefix)
    rows, visible_NS = tree(0, prefix, parents)
    inputs = PassInputs.of("tree", [rows], CPU)
    k, v = (torch.randn(1, 1, G, prefix + N, D, generator=generator).to(kept[1]) for _ in range(2))
    q_1BNHD = torch.randn(1, 1, N, H, D, generator=generator).to(kept[0])
    in_tree = attention(q_1BNHD, PassCache(k, v, inputs), 0, spec)
    for node in range(N):
        column = visible_NS[node].nonzero()[:, 0]
        alone = PassInputs.of("chain", [RequestRows.chain(0, len(column) - 1, [1])], CPU)
        path = PassCache(k[:, :, :, column].contiguous(), v[:, :, :, column].contiguous(), alone)
        assert torch.equal(attention(q_1BNHD[:, :, node : node + 1], path, 0, spec)[0, 0, 0], in_tree[0, 0, node])


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
@pytest.mark.usefixtures("_instructions")
def test_what_a_row_does_not_see_need_not_be_a_number(bad: float, kept: Kept) -> None:
    """Drafted tokens whose keys and values overflowed, in a chain and in a branch beside: rows before them stay."""
    generator, prefix, N = torch.Generator().manual_seed(7), 40, 12
    k, v = (torch.randn(1, 1, G, prefix + N, 32, generator=generator).to(kept[1]) for _ in range(2))
    q_1BNHD = torch.randn(1, 1, N, 6, 32, generator=generator).to(kept[0])
    for parents, broken in ((chain(N), 5), ([-1, 0, 1, 2, 3, 3, 0, 6, 7, 8, 9, 10], 2)):
        rows, visible_NS = tree(0, prefix, parents)
        inputs = PassInputs.of("tree", [rows], CPU)
        before = attention(q_1BNHD, PassCache(k, v, inputs), 0, PLAIN)
        damaged = k.clone(), v.clone()
        for storage in damaged:
            storage[..., prefix + broken, :] = bad
        found = attention(q_1BNHD, PassCache(*damaged, inputs), 0, PLAIN)
        seen_N = visible_NS[:, prefix + broken]
        assert torch.equal(found[:, :, ~seen_N], before[:, :, ~seen_N])
        assert found[:, :, seen_N].isnan().all()


def test_threads_that_sleep_at_once_are_woken() -> None:
    q_1BNHD, k, v = torch.randn(1, 1, 3, 4, 64), *(torch.randn(1, 1, G, 150, 64) for _ in range(2))
    cache = PassCache(k, v, PassInputs.of("chain", [RequestRows.chain(0, 147, [1, 2, 3])], CPU))
    alone = attention(q_1BNHD, cache, 0, PLAIN)
    asleep = ThreadWaiting("sleep", find_runtime=lambda: None)
    NativeOps(CpuOps(), asleep).before_pass()
    try:
        with threads(4):
            assert all(torch.equal(attention(q_1BNHD, cache, 0, PLAIN), alone) for _ in range(200))
    finally:
        NativeOps(CpuOps(), ThreadWaiting("spin", find_runtime=lambda: None)).before_pass()


@pytest.mark.parametrize("cached", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("at", [3, 140])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_unusable_keys_are_not_hidden(bad: float, at: int, cached: torch.dtype) -> None:
    """torch's attention gives NaN, and the engine an error; a head of zeros would go unseen."""
    k, v = (torch.randn(1, 1, G, 150, 64).to(cached) for _ in range(2))
    k[..., at, :] = bad
    inputs = PassInputs.of("chain", [RequestRows.chain(0, 149, [1])], CPU)
    q_1BNHD = torch.rand(1, 1, 1, 4, 64) + 1
    assert attention(q_1BNHD, PassCache(k, v, inputs), 0, PLAIN).isnan().all()


def test_what_it_leaves_to_torch() -> None:
    k = torch.zeros(1, 1, G, 64, 64)
    q = torch.zeros(1, 1, 4, 4, 64)
    assert attends(q, k)
    assert not attends(torch.zeros(1, 1, MOST_ROWS + 1, 4, 64), k)
    assert attends(q, k.bfloat16())
    assert not attends(q, k.to(torch.int8)) and not attends(q.bfloat16(), k)
    assert not attends(q.half(), k.half()) and not attends(q.double(), k.double())
    assert not attends(q[..., :40], k[..., :40].contiguous())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_of_no_rows(dtype: torch.dtype) -> None:
    inputs = PassInputs.of("chain", [RequestRows.chain(0, 8, [])], torch.device("cpu"))
    k, v = torch.randn((2, 1, 1, 1, 10, 16), dtype=dtype)
    q = torch.empty((1, 1, inputs.width, 2, 16), dtype=dtype)
    assert attention(q, PassCache(k, v, inputs), 0, AttentionSpec()).shape == (1, 1, 0, 2, 16)


@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan")])
def test_a_scale_that_would_show_hidden_keys_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be more than 0"):
        AttentionSpec(scale=scale)
