"""Trees, tensors and masks that tree attention and its rivals are measured with.

Legend: B batch, N queries (tree nodes), H query heads, G KV heads, D head dim, P prefix, S = P + N keys.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TreeKind = Literal["random", "chain"]


@dataclass(frozen=True)
class Shape:
    """One measured shape. ``tree``: ``random`` (parents drawn uniformly) or ``chain`` (a causal mask)."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    nodes: int
    prefix: int
    dtype: str
    tree: TreeKind = "random"

    @property
    def keys(self) -> int:
        """S: prefix and tree slots."""
        return self.prefix + self.nodes

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def random_ends(nodes: int, seed: int) -> list[int]:
    """Subtree ends of a random recursive tree in DFS pre-order: a node's parent is uniform among those before it."""
    generator = random.Random(seed)
    children: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(1, nodes):
        children[generator.randrange(node)].append(node)
    ends, number = [0] * nodes, 0
    stack = [(0, False)]
    open_nodes: list[int] = []
    while stack:
        node, left = stack.pop()
        if left:
            ends[open_nodes.pop()] = number
            continue
        open_nodes.append(number)
        number += 1
        stack.append((node, True))
        stack += [(child, False) for child in reversed(children[node])]
    return ends


def tree_ends(kind: TreeKind, nodes: int, seed: int) -> list[int]:
    return [nodes] * nodes if kind == "chain" else random_ends(nodes, seed)


@dataclass(frozen=True)
class Inputs:
    """Tensors of a pass. ``end_BN`` is the whole mask of our kernel: int32, 4 bytes a node and sequence."""

    q_BNHD: torch.Tensor
    k_BGSD: torch.Tensor
    v_BGSD: torch.Tensor
    end_BN: torch.Tensor
    prefix: int

    @staticmethod
    def make(shape: Shape, device: torch.device, one_tree: bool = False, seed: int = 0) -> Inputs:
        """Standard normal tensors and a tree of its own for every sequence (``one_tree``: the same for all)."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=generator, device=device).to(DTYPES[shape.dtype])

        trees = [tree_ends(shape.tree, shape.nodes, seed if one_tree else seed + b) for b in range(shape.batch)]
        return Inputs(
            normal(shape.batch, shape.nodes, shape.heads, shape.head_dim),
            normal(shape.batch, shape.kv_heads, shape.keys, shape.head_dim),
            normal(shape.batch, shape.kv_heads, shape.keys, shape.head_dim),
            torch.tensor(trees, dtype=torch.int32, device=device),
            shape.prefix,
        )

    def visible_BNN(self) -> torch.Tensor:
        """Dense visibility of the tree slots, bool."""
        slot_N = torch.arange(self.end_BN.shape[1], dtype=torch.int32, device=self.end_BN.device)
        return (slot_N <= slot_N[:, None]) & (slot_N[:, None] < self.end_BN[:, None, :])

    def visible_B1NS(self) -> torch.Tensor:
        """The explicit mask of ``scaled_dot_product_attention``, bool, prefix included, broadcast over heads."""
        return torch.nn.functional.pad(self.visible_BNN(), (self.prefix, 0), value=True)[:, None]


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
