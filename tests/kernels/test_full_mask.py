"""The kernel that the benchmark measures with a dense mask computes the same attention as the one with intervals."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.dense_attention import (
    TOLERANCE,
    ancestors,
    case,
    dense_attention,
    ends,
    random_tree,
    relative_error,
    star,
)

pytest.importorskip("triton")

from benchmarks.support.full_mask_kernel import full_mask_attention


@pytest.mark.parametrize(("prefix", "splits"), [(0, 1), (30, 1), (30, 3), pytest.param(0, 3, marks=pytest.mark.full)])
def test_the_dense_result(prefix: int, splits: int, device: torch.device) -> None:
    """Two sequences with a tree each, three query heads to a KV head."""
    trees = [random_tree(70, seed=1), star(70)]
    it = case(2, 70, 2, 3, 32, prefix + 70, device)
    masks = [ancestors(parents, prefix) for parents in trees]
    visible_BNN = torch.stack([mask[:, prefix:] for mask in masks]).to(device)
    out = full_mask_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, visible_BNN, prefix, splits)
    for b, mask in enumerate(masks):
        own = slice(b, b + 1)
        expected = dense_attention(it.q_BNHD[own].cpu(), it.k_BGSD[own].cpu(), it.v_BGSD[own].cpu(), mask)
        assert relative_error(out[own], expected) < TOLERANCE


def test_the_benchmarks_trees_are_in_preorder() -> None:
    """Every interval lies within its parent's, and its dense mask is what walking up to the root gives."""
    from benchmarks.support.attention_inputs import Inputs, Shape, random_ends

    end_N = random_ends(200, seed=3)
    parents = [max((i for i in range(j) if end_N[i] > j), default=-1) for j in range(200)]
    assert parents[0] == -1 and -1 not in parents[1:]
    assert ends(parents) == end_N
    assert len(set(parents)) < 150, "a random tree has leaves"
    it = Inputs.make(Shape(1, 1, 1, 16, 200, 7, "float32"), torch.device("cpu"), seed=3)
    assert it.end_BN.tolist() == [end_N]
    assert torch.equal(it.visible_B1NS()[0, 0], ancestors(parents, 7))
