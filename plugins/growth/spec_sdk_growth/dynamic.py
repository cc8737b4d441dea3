"""Dynamic growth: the most probable paths of all lengths, after EAGLE-2 (Li et al. 2024, §4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spec_sdk.contracts import DraftLogits, Growing, Request, option
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.most_probable import MostProbableGrowth, grow_levels
from spec_sdk_growth.options import check_draws, check_kept, children_option, temperature_option, width_option


@dataclass
class DynamicConfig:
    """Options of ``drafter.growth=dynamic``; only a chain may be drawn at random."""

    width: int = width_option()
    max_nodes: int = option(32, "nodes of the tree, the root not counted", minimum=1)
    children: str = children_option()
    temperature: float = temperature_option()

    def __post_init__(self) -> None:
        check_kept(self.children, "dynamic", self.width)
        check_draws(self.children, self.temperature, "dynamic", pruned=self.width > 1)


class DynamicGrowth(MostProbableGrowth):
    """The ``max_nodes`` most probable paths of all lengths.

    Expansion: on every level the ``width`` most probable nodes are fed, and each offers its ``width`` best children.
    Reranking: of all that was offered, the most probable by joint probability are kept. A parent is at least as
    probable as its child, so what is kept is a tree.
    """

    name = "dynamic"
    Config = DynamicConfig
    config: DynamicConfig

    def kept_paths(self, request: Request) -> int | None:
        return self.width_if_chosen(request)

    def most_offered(self, request: Request) -> int | None:
        return self.config.max_nodes

    def grow_chosen(self, fed: TreeBuilder, root: DraftLogits, depth: int, drafter: str) -> Growing:
        width, max_nodes = self.config.width, self.config.max_nodes
        levels = yield from grow_levels(fed, root, depth, width, drafter)
        offered = [
            (-joint, level, parent, rank, offers.token_KW[k][rank])
            for level, offers in enumerate(levels)
            for k, parent in enumerate(offers.parents)
            for rank, joint in enumerate(offers.joint_KW[k])
            if joint > -math.inf
        ]
        fed_as = {path: node for offers in levels for path, node in offers.added.items()}
        # sorted by level too, so that of two paths of equal probability the parent comes before its child
        most = min(max_nodes, fed.max_nodes - 1)
        kept = sorted(sorted(offered)[:most], key=lambda offer: (*offer[1:3], offer[0]))
        tree, node_of, joint_of = TreeBuilder(fed.root), {0: 0}, {0: 0.0}
        for cost, _, parent, _, token in kept:
            chance = math.exp(-cost - joint_of[parent])
            node = tree.add(node_of[parent], token, "chosen", drafter=drafter, probability=chance)
            if (parent, token) in fed_as:
                node_of[fed_as[parent, token]], joint_of[fed_as[parent, token]] = node, -cost
        return tree.build().tree
