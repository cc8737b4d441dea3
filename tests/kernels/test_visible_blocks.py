"""The list of visible key blocks that the layers and heads of a pass share: against a mask that follows parents.

Legend: L layers, B requests, N rows, H query heads, G KV heads, R = H/G, D head dim, S cache slots, C capacity, T tree
slots.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import AttentionSpec, Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassKind, RequestRows
from spec_sdk.testing.random_weights import TINY, RandomWeights
from tests.kernels.dense_attention import TOLERANCE, chain, depths, ends, random_tree, relative_error, star

pytest.importorskip("triton")

from spec_sdk_backends import tree_attention as launcher
from spec_sdk_backends import tree_attention_kernel as kernels
from spec_sdk_backends.tree_attention import (
    Tiling,
    VisibleBlocks,
    cached_tree_attention,
    visible_blocks,
    visible_blocks_of,
)
from spec_sdk_backends.triton_ops import TritonOps
from tests.kernels.test_cached_attention import cached, growing, tree

R = 3
SMALL = Tiling(rows=16, keys=16, head_dim=16, warps=4, stages=3)
BATCHES: dict[str, tuple[PassKind, list[tuple[RequestRows, torch.Tensor]]]] = {
    "trees": ("tree", [tree(0, 70, random_tree(90, seed=1)), tree(1, 0, star(50)), tree(2, 5, chain(1))]),
    "chunks": ("chain", [tree(0, 50, chain(40)), tree(1, 3, chain(7))]),
    "growing": ("growing", [growing(0, 5, random_tree(60, seed=4), 9), growing(1, 9, [-1] * 40, 40)]),
}


def listed(blocks: VisibleBlocks, b: int, row_block: int) -> list[int]:
    count, *numbers = blocks.list_BXY[b, row_block].tolist()
    return numbers[:count]


def between(rows: RequestRows, nodes: list[int]) -> list[int]:
    """Blocks of a slot whose interval meets that of the nodes' numbers: what can be known of it without every row."""
    asked = [rows.query_start[node] for node in nodes]
    intervals = zip(rows.key_start, rows.key_end, strict=True)
    seen = [s for s, (start, end) in enumerate(intervals) if asked and start <= max(asked) and end > min(asked)]
    return sorted({s // SMALL.keys for s in seen})


@pytest.mark.parametrize("at_once", [16, 1024])
@pytest.mark.parametrize("name", BATCHES)
def test_a_list_has_the_blocks_that_a_row_sees(
    name: str, at_once: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them once, rising, and besides them only what lies between its first row and its last."""
    monkeypatch.setattr(launcher, "LOOKED_AT_ONCE", at_once)
    kind, batch = BATCHES[name]
    requests = [rows for rows, _ in batch]
    widest = max(len(rows.token) for rows in requests)
    inputs = PassInputs.of(kind, requests, device, widest + 30, max(len(rows.key_end) for rows in requests) + 20)
    blocks = visible_blocks(inputs, SMALL, R)
    skipped = 0
    for b, (rows, visible_NS) in enumerate(batch):
        live, slots = len(rows.token), len(rows.key_end)
        for block in range(-(-inputs.width * R // SMALL.rows)):
            nodes = [row // R for row in range(block * SMALL.rows, (block + 1) * SMALL.rows) if row < live * R]
            seen_T = visible_NS[nodes, rows.prefix :].any(0)
            found = listed(blocks, b, block)
            assert {int(slot) // SMALL.keys for slot in seen_T.nonzero()} <= set(found)
            assert found == between(rows, nodes)
            skipped += -(-slots // SMALL.keys) - len(found)
    assert skipped > 0


@pytest.mark.parametrize("name", BATCHES)
def test_trees_that_are_all_alike(name: str, device: torch.device) -> None:
    """The list of a launch without a cache is that of a pass whose requests have no padding."""
    kind, batch = BATCHES[name]
    rows, _ = batch[0]
    inputs = PassInputs.of(kind, [rows], device)
    starts = (inputs.key_start_BT, inputs.query_start_BN) if kind == "growing" else ()
    alone = visible_blocks_of(inputs.key_end_BT, inputs.width, SMALL, R, *starts)
    of_pass = visible_blocks(inputs, SMALL, R)
    for block in range(alone.list_BXY.shape[1]):
        assert listed(alone, 0, block) == listed(of_pass, 0, block)


SPECS = {"plain": AttentionSpec(), "window": AttentionSpec(window=3, softcap=2.0)}
LARGE: dict[str, tuple[PassKind, list[tuple[RequestRows, torch.Tensor]]]] = {
    "trees": ("tree", [tree(3, 70, random_tree(100, seed=1)), tree(0, 0, star(60)), tree(4, 20, chain(1))]),
    "growing": ("growing", [growing(4, 5, random_tree(100, seed=3), 4), growing(1, 30, [-1] * 70, 6)]),
}


ALWAYS = {("trees", "plain", 1), ("trees", "window", 3), ("growing", "plain", 3), ("growing", "window", 1)}
"""Every batch with every kind of layer and of launch; the interpreter takes seconds for each."""


@pytest.mark.parametrize(
    ("name", "spec", "splits"),
    [
        pytest.param(
            *(name, spec, splits),
            id=f"{name}-{way}-{splits}",
            marks=[pytest.mark.full] * ((name, way, splits) not in ALWAYS),
        )
        for name in LARGE
        for way, spec in SPECS.items()
        for splits in (1, 3)
    ],
)
def test_attention_is_that_of_programs_that_look_themselves(
    name: str, spec: AttentionSpec, splits: int, device: torch.device
) -> None:
    kind, batch = LARGE[name]
    requests = [rows for rows, _ in batch]
    q, k, v, inputs = cached(kind, requests, device, max(len(rows.token) for rows in requests) + 2)
    tiling = Tiling.choose(inputs.width * R, q.shape[-1], q.dtype)
    visible = visible_blocks(inputs, tiling, R)
    assert visible.most > 1
    out = cached_tree_attention(q, k, v, inputs, splits, spec, visible)
    looked = cached_tree_attention(q, k, v, inputs, splits, spec)
    assert torch.equal(out, looked) if splits == 1 else relative_error(out, looked.double().cpu()) < TOLERANCE
    expected = Ops().cached_attention(q.double(), PassCache(k.double(), v.double(), inputs), 0, spec)
    assert relative_error(out, expected.cpu()) < TOLERANCE


class Counting:
    """A kernel that says how often it was launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.launches += 1
        return self.kernel[grid]


def test_a_pass_makes_one_list_and_the_next_pass_its_own(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its inputs lie in the same memory, as those of a captured pass do; short trees make none."""
    counting = Counting(kernels.visible_blocks_kernel)
    monkeypatch.setattr(launcher, "visible_blocks_kernel", counting)
    found, nodes = {}, 150
    for name, ops in (("triton", TritonOps()), ("own", TritonOps(shares_lists=False)), ("reference", Ops())):
        executor = TorchExecutor(load_decoder(RandomWeights(TINY, 0), device, torch.float32), ops)
        cache = executor.new_cache()
        cache.reserve(1, 256)
        flat: torch.Tensor | None = None
        outputs = []
        # a star's rows see two blocks of three, a chain's all
        for parents in (star(nodes), random_tree(nodes, seed=1), chain(nodes)):
            rows = RequestRows.tree(0, 0, [1] * nodes, depths(parents), ends(parents))
            inputs = PassInputs.of("tree", [rows], device)
            assert inputs.flat is not None
            flat = inputs.flat.clone() if flat is None else flat.copy_(inputs.flat)
            again = PassInputs.over(flat, "tree", 1, nodes, nodes, known=inputs._known)
            outputs.append(executor.forward(again, cache, PassPlan(SequentialRunner())).logits_BNV)
        assert counting.launches == (3 if name == "triton" else 0)
        short = RequestRows.tree(0, 90, [1] * 9, depths(star(9)), ends(star(9)))
        executor.forward(PassInputs.of("tree", [short], device), cache, PassPlan(SequentialRunner()))
        assert counting.launches == (3 if name == "triton" else 0)
        counting.launches, found[name] = 0, outputs
    for one, own, reference in zip(found["triton"], found["own"], found["reference"], strict=True):
        assert torch.equal(one, own)
        assert relative_error(one, reference.double().cpu()) < 10 * TOLERANCE


def test_a_list_of_other_sizes_is_refused(device: torch.device) -> None:
    q, k, v, inputs = cached("tree", [tree(0, 5, star(20))[0]], device)
    other = visible_blocks(inputs, SMALL, R)
    with pytest.raises(ValueError, match="of other sizes"):
        cached_tree_attention(q, k, v, inputs, visible=other)
