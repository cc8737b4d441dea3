"""The tree attention kernel against float64 attention with a dense mask.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, P prefix, T tree slots.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.ops.attention_mask import AttentionMask
from tests.kernels.dense_attention import (
    TOLERANCE,
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

from spec_sdk_backends.tree_attention import tree_attention
from spec_sdk_backends.triton_ops import TritonOps

TREES = {
    "chain": chain(70),
    "star": star(70),
    "wide forest": wide_forest(131),
    "random": random_tree(100, seed=3),
    "one node": [-1],
}


def int32(numbers: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("prefix", [0, 64])
def test_trees(name: str, prefix: int, splits: int, device: torch.device) -> None:
    parents = TREES[name]
    it = case(1, len(parents), 1, 1, 64, prefix + len(parents), device)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32(ends(parents), device), prefix, splits=splits)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(parents, prefix))
    assert relative_error(out, expected) < TOLERANCE


@pytest.mark.parametrize(("dim", "splits"), [(576, 1), (576, 3), (320, 2)])
def test_values_that_are_keys(dim: int, splits: int, device: torch.device) -> None:
    """As of latents: heads beyond 256 dims, in half precision, of which float32 and others have no kernel."""
    parents, prefix = random_tree(20, seed=5), 40
    it = case(1, len(parents), 1, 5, dim, prefix + len(parents), device)
    q_BNHD, k_BGSD = it.q_BNHD.half(), it.k_BGSD.half()
    out = tree_attention(q_BNHD, k_BGSD, k_BGSD, int32(ends(parents), device), prefix, splits=splits)
    expected = dense_attention(q_BNHD.cpu(), k_BGSD.cpu(), k_BGSD.cpu(), ancestors(parents, prefix))
    assert relative_error(out, expected) < 2e-3
    for q, k, v in ((it.q_BNHD, it.k_BGSD, it.k_BGSD), (q_BNHD, k_BGSD, k_BGSD.clone())):
        with pytest.raises(UserError, match=f"tree attention takes head dims up to 256, not {dim}"):
            tree_attention(q, k, v, int32(ends(parents), device), prefix)


HEADS = [(1, 96), (3, 64), (4, 96), (2, 128), (2, 256)]
PREFIXES = (0, 1, 63, 200)
ONCE = {(1, 96): 200, (4, 96): 63, (2, 128): 0, (2, 256): 1}
"""With which prefix heads are tried outside the full tier: prefixes are blocks of keys, whatever the heads are."""


@pytest.mark.parametrize(
    ("prefix", "group", "head_dim"),
    [
        pytest.param(prefix, *heads, marks=[] if ONCE.get(heads, prefix) == prefix else pytest.mark.full)
        for prefix in PREFIXES
        for heads in HEADS
    ],
)
def test_head_groups_and_head_dims(group: int, head_dim: int, prefix: int, device: torch.device) -> None:
    parents = random_tree(23, seed=group)
    it = case(2, len(parents), 2, group, head_dim, prefix + len(parents), device, seed=prefix)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32(ends(parents), device), prefix, splits=2)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(parents, prefix))
    assert relative_error(out, expected) < TOLERANCE


@pytest.mark.parametrize("splits", [1, 5, 64])
def test_one_query_over_a_long_prefix(splits: int, device: torch.device) -> None:
    it = case(1, 1, 1, 3, 64, 513, device)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), 512, splits=splits)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors([-1], 512))
    assert relative_error(out, expected) < TOLERANCE


@pytest.mark.parametrize("splits", [1, 4])
def test_a_batch_of_different_trees(splits: int, device: torch.device) -> None:
    """After one prefix; with prefixes of their own they are a pass over the cache (test_cached_attention.py)."""
    trees, prefix = [random_tree(40, seed=1), star(40), chain(40)], 130
    it = case(3, 40, 2, 2, 64, prefix + 40, device)
    end_BT = torch.stack([int32(ends(parents), device) for parents in trees])
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end_BT, prefix, splits=splits)
    for b, parents in enumerate(trees):
        own = slice(b, b + 1)
        expected = dense_attention(
            it.q_BNHD[own].cpu(), it.k_BGSD[own].cpu(), it.v_BGSD[own].cpu(), ancestors(parents, prefix)
        )
        assert relative_error(out[own], expected) < TOLERANCE


@pytest.mark.parametrize("splits", [1, 2])
def test_growing_tree_in_creation_order(splits: int, device: torch.device) -> None:
    """Breadth-first slots: a root, 9 children, 9 x 9 grandchildren; the last level asks."""
    width, prefix = 9, 30
    parents = [-1] + [0] * width + [1 + i // width for i in range(width * width)]
    preorder = [0] + [1 + i * (width + 1) for i in range(width)]
    preorder += [preorder[1 + i // width] + 1 + i % width for i in range(width * width)]
    size = [1 + width + width * width] + [1 + width] * width + [1] * (width * width)
    end = [start + count for start, count in zip(preorder, size, strict=True)]
    queries = width * width
    mask = AttentionMask.growing_tree(prefix, preorder, end, queries, device)
    it = case(1, queries, 2, 2, 64, prefix + len(parents), device)
    out = tree_attention(
        it.q_BNHD, it.k_BGSD, it.v_BGSD, mask.key_end_T, prefix, mask.key_start_T, mask.query_start_N, splits
    )
    visible_NS = ancestors(parents, prefix)[-queries:]
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), visible_NS)
    assert relative_error(out, expected) < TOLERANCE
    assert relative_error(TritonOps().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask), expected) < TOLERANCE


@pytest.mark.parametrize("name", TREES)
def test_ops_take_the_passes_masks(name: str, device: torch.device) -> None:
    parents, prefix = TREES[name], 11
    it = case(1, len(parents), 1, 3, 64, prefix + len(parents), device)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(parents, prefix))
    masks = [AttentionMask.tree(prefix, ends(parents), device)]
    if name == "chain":
        masks.append(AttentionMask.chain(prefix, len(parents), device))
    for mask in masks:
        assert relative_error(TritonOps().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask), expected) < TOLERANCE


def test_first_pass_of_a_prompt(device: torch.device) -> None:
    it = case(1, 50, 1, 3, 64, 50, device)
    mask = AttentionMask.chain(0, 50, device)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(chain(50), 0))
    assert relative_error(TritonOps().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask), expected) < TOLERANCE


def test_padding_nodes_see_the_prefix_and_themselves_and_are_seen_by_nobody(device: torch.device) -> None:
    parents, prefix, padding = random_tree(50, seed=5), 9, 30
    padded = parents + [-1] * padding
    end_T = int32(ends(padded), device)
    assert end_T[-padding:].tolist() == list(range(51, 81))
    it = case(1, len(padded), 1, 2, 64, prefix + len(padded), device)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end_T, prefix)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(padded, prefix))
    assert relative_error(out, expected) < TOLERANCE
    keys = prefix + 50
    alone = tree_attention(
        it.q_BNHD[:, :50], it.k_BGSD[:, :, :keys], it.v_BGSD[:, :, :keys], end_T[:50].clone(), prefix
    )
    assert relative_error(out[:, :50], alone.double()) < TOLERANCE


@pytest.mark.parametrize("splits", [1, 2])
def test_a_query_that_sees_nothing_gets_zero(splits: int, device: torch.device) -> None:
    """Every second query has a pre-order number that no slot covers."""
    it = case(1, 20, 1, 1, 64, 20, device)
    start, end = int32(list(range(20)), device), int32(list(range(1, 21)), device)
    asked = int32([i if i % 2 else 1000 + i for i in range(20)], device)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end, 0, start, asked, splits)
    assert torch.equal(out[:, ::2], torch.zeros_like(out[:, ::2]))
    expected = it.v_BGSD.transpose(1, 2)[:, 1::2]
    assert relative_error(out[:, 1::2], expected.double()) < TOLERANCE


def test_a_wrong_mask_is_caught(device: torch.device) -> None:
    """One subtree end moved by one slot shows: the comparison above can fail."""
    parents, prefix = random_tree(40, seed=9), 20
    wrong = ends(parents)
    victim = next(i for i in range(1, 39) if wrong[i] == i + 1)
    wrong[victim] += 1
    it = case(1, 40, 1, 1, 64, prefix + 40, device)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32(wrong, device), prefix)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(parents, prefix))
    assert relative_error(out, expected) > 100 * TOLERANCE
    others = [i for i in range(40) if i != victim + 1]
    assert relative_error(out[:, others], expected[:, others]) < TOLERANCE


def test_refusals(device: torch.device) -> None:
    it = case(1, 4, 1, 1, 64, 4, device)
    end = int32([4, 2, 3, 4], device)
    with pytest.raises(UserError, match="not float64"):
        tree_attention(it.q_BNHD.double(), it.k_BGSD.double(), it.v_BGSD.double(), end, 0)
    with pytest.raises(ValueError, match="do not fit into 4 keys"):
        tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end, 1)
    with pytest.raises(ValueError, match="go together"):
        tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end, 0, key_start_BT=end)
    with pytest.raises(ValueError, match="4 queries of a closed tree of 3 slots"):
        tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end[:3], 0)
    wide = case(1, 4, 1, 1, 320, 4, device)
    with pytest.raises(UserError, match="up to 256, not 320"):
        tree_attention(wide.q_BNHD, wide.k_BGSD, wide.v_BGSD, end, 0)
