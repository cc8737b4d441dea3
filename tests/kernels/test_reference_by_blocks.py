"""The reference tree attention of many queries: the same result block by block, in memory that grows with N.

Legend: N queries, P prefix, T tree slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spec_sdk.ops import PLAIN, AttentionSpec, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.masked_attention import QUERY_BLOCK
from tests.kernels.dense_attention import (
    ancestors,
    case,
    chain,
    dense_attention,
    depths,
    ends,
    in_window,
    random_tree,
    relative_error,
    star,
    wide_forest,
)

CPU = torch.device("cpu")
NODES = 2 * QUERY_BLOCK + 1


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes while the mode is on."""

    elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return result


@pytest.mark.parametrize(
    ("prefix", "spec"), [(0, PLAIN), (30, PLAIN), (30, AttentionSpec(0.3, 2.0, 4)), (0, AttentionSpec(window=300))]
)
@pytest.mark.parametrize("parents", [chain(NODES), star(NODES), wide_forest(NODES), random_tree(NODES, seed=8)])
def test_the_dense_result(parents: list[int], prefix: int, spec: AttentionSpec) -> None:
    it = case(1, NODES, 1, 3, 16, prefix + NODES, CPU)
    mask = AttentionMask.tree(prefix, ends(parents), CPU)
    seen_NS = in_window(ancestors(parents, prefix), prefix, depths(parents), spec.window)
    expected = dense_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, seen_NS, spec)
    assert relative_error(Ops().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, spec), expected) < 1e-5


def test_a_growing_tree() -> None:
    """A root and its children in falling pre-order, so that slots and numbers run against each other."""
    children, prefix = NODES, 5
    start = [0, *range(children, 0, -1)]
    end = [children + 1, *(number + 1 for number in start[1:])]
    mask = AttentionMask.growing_tree(prefix, start, end, children, CPU)
    it = case(1, children, 1, 2, 16, prefix + children + 1, CPU)
    visible_NS = ancestors(star(children + 1), prefix)[1:]
    expected = dense_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, visible_NS)
    assert relative_error(Ops().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask), expected) < 1e-5


def test_memory_grows_with_the_nodes() -> None:
    """Twice the nodes, at most twice the largest tensor (with the dense mask it was four times)."""
    largest = []
    for nodes in (4 * QUERY_BLOCK, 8 * QUERY_BLOCK):
        it = case(1, nodes, 1, 2, 16, nodes, CPU)
        mask = AttentionMask.tree(0, ends(star(nodes)), CPU)
        with LargestTensor() as seen:
            Ops().tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask)
        assert seen.elements >= it.q_BNHD.numel()
        largest.append(seen.elements)
    assert largest[1] <= 2.1 * largest[0]
