"""Attention in the order of positions: right against float64, and a tree node's bits are plain decoding's.

Legend: L layers, B requests, N rows, H query heads, G KV heads, D head dim, S cache slots, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.errors import UserError
from spec_sdk.ops import PLAIN, AttentionSpec
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassKind, RequestRows
from spec_sdk.testing.same_bits import same_bits
from tests.kernels.dense_attention import chain, depths, ends, random_tree, star

pytest.importorskip("triton")

from spec_sdk_backends import aligned_attention as launcher
from spec_sdk_backends.aligned_attention import Spans, aligned_attention
from spec_sdk_backends.deterministic_ops import DeterministicOps
from spec_sdk_backends.tree_attention import cached_tree_attention
from tests.kernels.test_cached_attention import BATCHES, cached, check_rows, growing, tree

SMALL = Spans(block=16, span=32)
"""So that short texts have several."""
NARROW = AttentionSpec(scale=0.3, window=19)
Batch = tuple[PassKind, list[tuple[RequestRows, torch.Tensor]]]
SHORT: dict[str, Batch] = {
    "trees": ("tree", [tree(3, 41, random_tree(7, seed=1)), tree(0, 0, star(4))]),
    "plain steps": BATCHES["plain steps"],
    "chunks": ("chain", [tree(1, 50, chain(7)), tree(4, 0, chain(4))]),
    "growing": ("growing", [growing(4, 5, [-1, -1, 0, 1, 0, 2, 3], 3), growing(0, 20, [-1, *range(30)], 1)]),
}
LAYERS = {"whole": (3, PLAIN), "narrow": (0, NARROW)}
"""Rows of padding, and what a layer sees."""


@pytest.mark.parametrize(
    ("batch", "padding", "spec"),
    [
        pytest.param(batch, *LAYERS[layer], id=f"{name}, {layer}", marks=marks)
        for batches, marks in ((SHORT, []), (BATCHES, [pytest.mark.full]))
        for name, batch in batches.items()
        for layer in LAYERS
        if batches is SHORT or batch is not SHORT.get(name)
    ],
)
def test_every_kind_of_pass(batch: Batch, padding: int, spec: AttentionSpec, device: torch.device) -> None:
    """Slots out of order, prefixes and trees of their own, two layers; the caches hold NaN where nobody may look."""
    kind, of_requests = batch
    requests = [rows for rows, _ in of_requests]
    most_rows, most_slots = max(len(r.token) for r in requests), max(len(r.key_end) for r in requests)
    q, k, v, inputs = cached(kind, requests, device, most_rows + padding, most_slots + 2 * padding)
    out = aligned_attention(q, PassCache(k, v, inputs), 0, spec, SMALL)
    assert out.shape == q.shape
    check_rows(out, q, k, v, of_requests, spec)


Attention = Callable[[torch.Tensor, PassCache, AttentionSpec], torch.Tensor]


def by_position(q_LBNHD: torch.Tensor, cache: PassCache, spec: AttentionSpec) -> torch.Tensor:
    return aligned_attention(q_LBNHD, cache, 0, spec, SMALL)


def by_slot(q_LBNHD: torch.Tensor, cache: PassCache, spec: AttentionSpec) -> torch.Tensor:
    return cached_tree_attention(q_LBNHD, *cache.layers(0, len(q_LBNHD)), cache.inputs, 2, spec)


def nodes_that_differ(
    attention: Attention,
    prefix: int,
    nodes: int,
    heads: tuple[int, int, int],
    spec: AttentionSpec,
    device: torch.device,
) -> list[int]:
    """The nodes of a random tree whose attention has other bits than that of plain decoding, which asks from a slot in
    which the node's ancestors are committed. ``heads``: G, R and D.
    """
    G, R, D = heads
    parents, generator = random_tree(nodes, seed=prefix), torch.Generator().manual_seed(nodes)
    depth_N = depths(parents)
    q_N = torch.randn(nodes, G * R, D, generator=generator)
    k_GKD, v_GKD = torch.randn(2, G, prefix + nodes, D, generator=generator)
    tree = RequestRows.tree(1, prefix, [1] * nodes, depth_N, ends(parents))
    chunk = RequestRows.chain(0, 3, [1] * 5)
    beside = torch.randn(2, 2, G, prefix + nodes + 8, D, generator=generator)
    (k_SGCD, v_SGCD) = beside
    k_SGCD[1, :, : prefix + nodes], v_SGCD[1, :, : prefix + nodes] = k_GKD, v_GKD
    alone_k, alone_v = torch.full((2, nodes, G, prefix + nodes, D), float("nan"))
    for node in range(nodes):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        columns = [*range(prefix), *(prefix + ancestor for ancestor in path)]
        alone_k[node, :, : len(columns)], alone_v[node, :, : len(columns)] = k_GKD[:, columns], v_GKD[:, columns]
    inputs = PassInputs.of("tree", [chunk, tree], device)
    q_BNHD = torch.randn(2, nodes, G * R, D, generator=generator)
    q_BNHD[1] = q_N
    cache = PassCache(k_SGCD[None].to(device), v_SGCD[None].to(device), inputs)
    found = attention(q_BNHD[None].to(device), cache, spec)[0, 1]
    steps = [RequestRows.chain(node, prefix + depth_N[node], [1]) for node in range(nodes)]
    plain = PassCache(alone_k[None].to(device), alone_v[None].to(device), PassInputs.of("chain", steps, device))
    expected = attention(q_N[None, :, None].to(device), plain, spec)[0, :, 0]
    return [node for node in range(nodes) if not same_bits(found[node], expected[node])]


@pytest.mark.parametrize(
    ("prefix", "heads", "spec"),
    [
        (27, (2, 3, 16), PLAIN),
        (64, (1, 5, 24), AttentionSpec(window=21)),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in ((0, (2, 1, 64), PLAIN), (31, (1, 17, 16), PLAIN), (95, (1, 4, 128), AttentionSpec(window=40)))
        ),
    ],
)
def test_a_node_has_the_bits_of_plain_decoding(
    prefix: int, heads: tuple[int, int, int], spec: AttentionSpec, device: torch.device
) -> None:
    """Beside another request; the prefix ends within a span and at its end."""
    assert nodes_that_differ(by_position, prefix, 12, heads, spec, device) == []


def test_attention_in_the_order_of_slots_is_found(device: torch.device) -> None:
    """Where a node's ancestors stand in the cache, and how the keys are shared out, shows in its bits."""
    assert len(nodes_that_differ(by_slot, 27, 12, (2, 3, 16), PLAIN, device)) > 3


def test_rows_may_be_taken_in_several_launches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which each has its own partial results; bits stay."""
    kind, batch = SHORT["trees"]
    q, k, v, inputs = cached(kind, [rows for rows, _ in batch], device)
    at_once = aligned_attention(q, PassCache(k, v, inputs), 0, spans=SMALL)
    monkeypatch.setattr(launcher, "MOST_PART_ELEMENTS", 3 * q[:, :, 0].numel() * 3)
    assert same_bits(aligned_attention(q, PassCache(k, v, inputs), 0, spans=SMALL), at_once)


def test_it_reads_no_tensor_of_the_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, batch = SHORT["growing"]
    q, k, v, inputs = cached(kind, [rows for rows, _ in batch], device)
    expected = aligned_attention(q, PassCache(k, v, inputs), 0, spans=SMALL)
    monkeypatch.setattr(PassInputs, "parts", property(_waits))
    monkeypatch.setattr(torch.Tensor, "tolist", _waits)
    assert same_bits(DeterministicOps(SMALL).cached_attention(q, PassCache(k, v, inputs), 0), expected)


def _waits(*arguments: object) -> NoReturn:
    raise AssertionError("the host waits for the device")


def test_what_has_no_kernel(device: torch.device) -> None:
    q, k, v, inputs = cached("chain", [RequestRows.chain(2, 40, [1])], device)
    with pytest.raises(UserError, match="not float64"):
        aligned_attention(q.double(), PassCache(k.double(), v.double(), inputs), 0)
    with pytest.raises(ValueError, match="no form for capped scores"):
        aligned_attention(q, PassCache(k, v, inputs), 0, AttentionSpec(softcap=1.5))
    with pytest.raises(ValueError, match="nor for sinks"):
        aligned_attention(q, PassCache(k, v, inputs), 0, AttentionSpec(sinks=(1.0,) * q.shape[3]))
    # of a draft model, whose bits nobody asks for
    for spec in (AttentionSpec(softcap=1.5), AttentionSpec(sinks=(1.0,) * q.shape[3])):
        assert DeterministicOps().cached_attention(q, PassCache(k, v, inputs), 0, spec).isfinite().all()
    assert aligned_attention(q[:, :0], PassCache(k, v, inputs), 0).shape == q[:, :0].shape


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_spans_are_whole_blocks(head_dim: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        spans = Spans.choose(head_dim, dtype)
        assert spans.span % spans.block == 0 and spans.block >= 16
