"""A pass over several requests and layers in one launch: against float64 by dense masks, and against the reference.

Legend: L layers, B requests, N rows, H query heads, G KV heads, D head dim, S cache slots, C capacity, T tree slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.errors import UserError
from spec_sdk.ops import PLAIN, AttentionSpec, Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassKind, RequestRows
from spec_sdk.tree import TreeBuilder
from tests.kernels.dense_attention import (
    TOLERANCE,
    ancestors,
    chain,
    dense_attention,
    depths,
    ends,
    in_window,
    random_tree,
    relative_error,
    star,
)

pytest.importorskip("triton")

from spec_sdk_backends import tree_attention as launcher
from spec_sdk_backends.tree_attention import cached_tree_attention
from spec_sdk_backends.triton_ops import TritonOps

L, G, R, D, S = 2, 2, 3, 16, 5


def tree(slot: int, prefix: int, parents: list[int]) -> tuple[RequestRows, torch.Tensor]:
    """A closed tree, and what its nodes see."""
    rows = RequestRows.tree(slot, prefix, parents, depths(parents), ends(parents))
    return rows, ancestors(parents, prefix)


def growing(slot: int, prefix: int, parents: list[int], queries: int) -> tuple[RequestRows, torch.Tensor]:
    """A tree in creation order whose youngest nodes ask; the root, committed already, has no slot."""
    builder = TreeBuilder(7)
    for node, parent in enumerate(parents):
        builder.add(parent + 1, node, "chosen")
    start, end = builder.intervals()
    old, position = len(parents) - queries, [prefix + depth for depth in depths(parents)]
    rows = RequestRows(
        slot, prefix, prefix + old, [1] * queries, position[old:], start[1 + old :], start[1:], end[1:], position
    )
    return rows, ancestors(parents, prefix)[old:]


BATCHES: dict[str, tuple[PassKind, list[tuple[RequestRows, torch.Tensor]]]] = {
    "trees": ("tree", [tree(3, 70, random_tree(20, seed=1)), tree(0, 0, star(9)), tree(4, 133, chain(1))]),
    "plain steps": ("chain", [tree(2, 64, chain(1)), tree(4, 1, chain(1)), tree(1, 200, chain(1))]),
    "chunks": ("chain", [tree(1, 50, chain(12)), tree(4, 0, chain(5)), tree(0, 7, chain(30))]),
    "growing": (
        "growing",
        [
            growing(4, 5, [-1, -1, 0, 1, 0, 2, 3], 3),
            growing(1, 90, [-1] * 4, 4),
            growing(0, 64, [-1, *range(66)], 1),
        ],
    ),
    "more rows than a block": ("tree", [tree(1, 20, random_tree(25, seed=2)), tree(3, 66, star(3))]),
}


def cached(
    kind: PassKind, requests: Sequence[RequestRows], device: torch.device, rows: int = 0, slots: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, PassInputs]:
    """Random q, and caches that hold NaN wherever no request of the pass may look."""
    generator = torch.Generator().manual_seed(len(requests))
    inputs = PassInputs.of(kind, requests, device, rows, slots)
    q_LBNHD = torch.randn(L, inputs.batch, inputs.width, G * R, D, generator=generator)
    capacity = max(r.prefix + len(r.key_end) for r in requests) + 17
    stored = [torch.full((L, S, G, capacity, D), float("nan")) for _ in range(2)]
    for r in requests:
        keys = r.prefix + len(r.key_end)
        for storage in stored:
            storage[:, r.slot, :, :keys] = torch.randn(L, G, keys, D, generator=generator)
    return q_LBNHD.to(device), stored[0].to(device), stored[1].to(device), inputs


NARROW, CAPPED = AttentionSpec(window=3), AttentionSpec(scale=0.4, softcap=1.5, window=70)
SINKS = AttentionSpec(sinks=tuple(1.3 * head - 2.0 for head in range(G * R)))


WAYS = {
    "padded": (1, 3, PLAIN),
    "split": (3, 0, PLAIN),
    "narrow": (3, 0, NARROW),
    "capped": (1, 3, CAPPED),
    "sinks": (3, 3, SINKS),
    "sinks of one split": (1, 0, SINKS),
}
"""Splits, padding and kind of layer."""
TRIED = {
    "trees": ("padded", "narrow", "sinks"),
    "plain steps": ("split", "capped", "sinks of one split"),
    "chunks": ("padded", "capped"),
    "growing": ("split", "narrow"),
    "more rows than a block": ("narrow", "capped"),
}
"""Outside the full tier: each batch with two ways, each way with batches of several kinds."""


def check_rows(
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: Sequence[tuple[RequestRows, torch.Tensor]],
    spec: AttentionSpec,
) -> None:
    """Every request's rows are those of dense attention over its own slot, and the others are 0."""
    for b, (rows, visible_NS) in enumerate(batch):
        live, keys = len(rows.token), slice(rows.prefix + len(rows.key_end))
        k_LGKD, v_LGKD = (cache[:, rows.slot, :, keys].cpu() for cache in (k, v))
        depth_T = [position - rows.prefix for position in rows.key_position]
        seen_NS = in_window(visible_NS, rows.prefix, depth_T, spec.window)
        expected = dense_attention(q[:, b, :live].cpu(), k_LGKD, v_LGKD, seen_NS, spec)
        assert relative_error(out[:, b, :live], expected) < TOLERANCE
        assert not out[:, b, live:].any(), "padding gets 0"


@pytest.mark.parametrize(
    ("name", "splits", "padding", "spec"),
    [
        pytest.param(name, *WAYS[way], id=f"{name}, {way}", marks=[pytest.mark.full] * (way not in TRIED[name]))
        for name in BATCHES
        for way in WAYS
    ],
)
def test_every_request_has_its_own(
    name: str, splits: int, padding: int, spec: AttentionSpec, device: torch.device
) -> None:
    """Slots out of order, prefixes and trees of their own, padding of rows and slots; two layers."""
    kind, batch = BATCHES[name]
    requests = [rows for rows, _ in batch]
    most_rows, most_slots = max(len(r.token) for r in requests), max(len(r.key_end) for r in requests)
    q, k, v, inputs = cached(kind, requests, device, most_rows + padding, most_slots + 2 * padding)
    out = cached_tree_attention(q, k, v, inputs, splits, spec)
    assert out.shape == q.shape
    assert relative_error(out, Ops().cached_attention(q, PassCache(k, v, inputs), 0, spec).double().cpu()) < TOLERANCE
    check_rows(out, q, k, v, batch, spec)


@pytest.mark.parametrize("spec", [PLAIN, NARROW, CAPPED, SINKS])
@pytest.mark.parametrize("name", ["plain steps", "growing"])
def test_the_ops_read_no_tensor_of_the_device(
    name: str, spec: AttentionSpec, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a later pass nor a prompt's first one asks for the host integers of the requests."""
    kind, batch = BATCHES[name]
    passes = [(kind, [rows for rows, _ in batch])]
    passes.append(("chain", [RequestRows.chain(3, 0, [1] * 20), RequestRows.chain(1, 0, [1] * 13)]))
    for of_kind, requests in passes:
        q, k, v, inputs = cached(of_kind, requests, device)
        expected = Ops().cached_attention(q, PassCache(k, v, inputs), 0, spec)
        with monkeypatch.context() as patch:
            patch.setattr(PassInputs, "parts", property(_waits))
            patch.setattr(torch.Tensor, "tolist", _waits)
            out = TritonOps().cached_attention(q, PassCache(k, v, inputs), 0, spec)
        assert relative_error(out, expected.double().cpu()) < TOLERANCE


def _waits(inputs: PassInputs) -> NoReturn:
    raise AssertionError("the host waits for the device")


@pytest.mark.parametrize("rows", [0, 24, 64])
def test_first_chunks_stay_with_torch(rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with more rows of padding than the cache has columns."""
    monkeypatch.setattr("spec_sdk_backends.triton_ops.cached_tree_attention", _waits)
    requests = [RequestRows.chain(4, 0, [1] * 20), RequestRows.chain(0, 0, [1] * 7), RequestRows.chain(2, 0, [1])]
    q, k, v, inputs = cached("chain", requests, device, rows)
    assert inputs.first_chunk
    out = TritonOps().cached_attention(q, PassCache(k, v, inputs), 0)
    for b, r in enumerate(requests):
        live = len(r.token)
        k_LGND, v_LGND = (cache[:, r.slot, :, :live].cpu() for cache in (k, v))
        expected = dense_attention(q[:, b, :live].cpu(), k_LGND, v_LGND, ancestors(chain(live), 0))
        assert relative_error(out[:, b, :live], expected) < TOLERANCE
        assert not out[:, b, live:].any()


def test_what_the_host_knows_of_a_pass() -> None:
    cpu = torch.device("cpu")
    first, second = RequestRows.chain(0, 0, [1, 2, 3]), RequestRows.chain(1, 40, [1])
    mixed = PassInputs.of("chain", [first, second], cpu)
    assert not mixed.first_chunk and mixed.columns == 41
    assert mixed.request(0).first_chunk and mixed.request(0).columns == 3
    assert not mixed.request(1).first_chunk and mixed.request(1).columns == 41
    assert PassInputs.of("chain", [first, first], cpu).first_chunk
    root, _ = tree(0, 0, [-1])
    assert not PassInputs.of("tree", [root], cpu).first_chunk


@pytest.mark.parametrize(("known", "keys"), [(True, 41), (False, 58)])
def test_splits_go_by_the_columns_that_the_host_knows(
    known: bool, keys: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else by the capacity of a slot."""
    blocks: list[int] = []

    def chosen(programs: int, key_blocks: int, *rest: object) -> int:
        blocks.append(key_blocks)
        return 2

    q, k, v, inputs = cached("chain", [RequestRows.chain(2, 40, [1])], device)
    if not known:
        inputs = replace(inputs, _known=None)
        assert inputs.columns is None and not inputs.first_chunk
    tiling = launcher.Tiling(rows=16, keys=16, head_dim=16, warps=4, stages=3)
    monkeypatch.setattr(launcher.Tiling, "choose", lambda *shape: tiling)
    monkeypatch.setattr(launcher, "choose_splits", chosen)
    out = cached_tree_attention(q, k, v, inputs)
    assert blocks == [-(-keys // tiling.keys)]
    assert relative_error(out, Ops().cached_attention(q, PassCache(k, v, inputs), 0).double().cpu()) < TOLERANCE


def test_a_wrong_slot_is_caught(device: torch.device) -> None:
    """The comparisons above can fail."""
    requests = [RequestRows.chain(2, 40, [1]), RequestRows.chain(0, 40, [1])]
    q, k, v, inputs = cached("chain", requests, device)
    out = cached_tree_attention(q, k, v, PassInputs.of("chain", requests[::-1], device))
    assert relative_error(out, Ops().cached_attention(q, PassCache(k, v, inputs), 0).double().cpu()) > 100 * TOLERANCE


def test_refusals(device: torch.device) -> None:
    q, k, v, inputs = cached("chain", [RequestRows.chain(2, 40, [1])], device)
    with pytest.raises(UserError, match="not float64"):
        cached_tree_attention(q.double(), k.double(), v.double(), inputs)
    with pytest.raises(ValueError, match=r"must be \[L, S, G, C, D\]"):
        cached_tree_attention(q, k[:1], v[:1], inputs)
    with pytest.raises(ValueError, match="q has 1 requests of 2 rows, the pass 1 of 1"):
        cached_tree_attention(q.expand(-1, -1, 2, -1, -1), k, v, inputs)
    with pytest.raises(ValueError, match="65 splits: 1 to 64"):
        cached_tree_attention(q, k, v, inputs, 65)
