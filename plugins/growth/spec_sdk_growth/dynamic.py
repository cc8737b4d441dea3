"""Dynamic growth: the most probable paths of all lengths, after EAGLE-2 (Li et al. 2024, §4).

Legend: K frontier nodes, W candidate children per node, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import Growing, Growth, Request, option
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.beam import best_children
from spec_sdk_growth.options import check_kept, children_of, children_option, width_option
from spec_sdk_growth.static import grow_static


@dataclass
class DynamicConfig:
    """Options of ``drafter.growth=dynamic``; only a chain may be drawn at random."""

    width: int = width_option()
    max_nodes: int = option(32, "nodes of the tree, the root not counted", minimum=1)
    children: str = children_option()

    def __post_init__(self) -> None:
        check_kept(self.children, "dynamic", self.width)


class DynamicGrowth(Growth):
    """The ``max_nodes`` most probable paths of all lengths.

    Expansion: on every level the ``width`` most probable nodes are fed, and each offers its ``width`` best children.
    Reranking: of all that was offered, the most probable by joint probability are kept. A parent is at least as
    probable as its child, so what is kept is a tree.
    """

    name = "dynamic"
    Config = DynamicConfig
    config: DynamicConfig

    @property
    def branches(self) -> bool:
        return self.config.width > 1

    def grow(
        self, fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, request: Request, drafter: str
    ) -> Growing:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        if children != "top_k":
            return grow_static(fed, root_logits_V, depth, [1], children, request, drafter)
        return grow_dynamic(fed, root_logits_V, depth, self.config.width, self.config.max_nodes, drafter)


def grow_dynamic(
    fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, max_nodes: int, drafter: str
) -> Growing:
    """The most probable paths of all lengths; children are chosen, not drawn."""
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    offered: list[tuple[float, int, int, int]] = []
    fed_as: dict[tuple[int, int], int] = {}
    for level in range(depth):
        if level:
            logits_KV = yield len(frontier)
        joint_KW, token_KW = best_children(logits_KV, joint_K, width)
        for k, parent in enumerate(frontier):
            children = zip(joint_KW[k].tolist(), token_KW[k].tolist(), strict=True)
            offered += [(-joint, level, parent, token) for joint, token in children]
        if level + 1 == depth or not fed.room:
            break
        best = joint_KW.flatten().topk(min(width, joint_KW.numel(), fed.room)).indices.sort().values
        joint_K = joint_KW.flatten()[best]
        pairs = zip((best // joint_KW.shape[1]).tolist(), token_KW.flatten()[best].tolist(), strict=True)
        expanded = [(frontier[k], token) for k, token in pairs]
        frontier = [fed.add(parent, token, "chosen", drafter=drafter) for parent, token in expanded]
        fed_as.update(zip(expanded, frontier, strict=True))
    # sorted by level too, so that of two paths of equal probability the parent comes before its child
    most = min(max_nodes, fed.max_nodes - 1)
    kept = sorted(sorted(offered)[:most], key=lambda offer: (offer[1], offer[2], offer[0]))
    tree, node_of = TreeBuilder(fed.root), {0: 0}
    for _, _, parent, token in kept:
        node = tree.add(node_of[parent], token, "chosen", drafter=drafter)
        if (parent, token) in fed_as:
            node_of[fed_as[parent, token]] = node
    return tree.build().tree
