"""Trees of guesses that depend on the tokens before them: opened level by level, and the best of all levels kept.

Legend: K nodes of a level, C candidates of a node.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Budget
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.guessing import first_nodes, least_price, worthwhile


@dataclass(frozen=True)
class _Node:
    """``joint``: the probability of the path to it. ``row``: which of its level's open nodes its parent is."""

    joint: float
    parent: int
    token: int
    depth: int
    row: int = 0


class LevelTree:
    """The most probable paths of all lengths, as far as they were opened; its nodes are numbered as they are offered.

    ``open``: the nodes whose children are wanted next, up to ``width`` of a level. Left out are paths of less than
    ``least`` probability, and those that can make no better tree within the budget.
    """

    def __init__(self, root: int, budget: Budget, width: int, least: float) -> None:
        self._budget, self._width = budget, width
        self._least = max(least, least_price(budget.node_costs))
        self._nodes = [_Node(1.0, -1, root, 0)]
        self.open = [0] if budget.depth > 0 and budget.nodes > 1 else []

    @property
    def tokens(self) -> list[int]:
        """Of the open nodes [K]."""
        return [self._nodes[node].token for node in self.open]

    @property
    def rows(self) -> list[int]:
        """For each open node, which of the level above was its parent, counted as they were open [K]."""
        return [self._nodes[node].row for node in self.open]

    @property
    def paths(self) -> list[list[int]]:
        """The tokens that lead from below the root to each open node."""
        return [self._path(node) for node in self.open]

    def offer(self, token_KC: Sequence[Sequence[int]], probability_KC: Sequence[Sequence[float]]) -> None:
        """The open nodes' children, and how probable each is behind its parent. Opens the best of them."""
        first = len(self._nodes)
        for row, parent in enumerate(self.open):
            above = self._nodes[parent]
            for token, probability in zip(token_KC[row], probability_KC[row], strict=True):
                joint = above.joint * probability
                if joint > 0 and joint >= self._least:
                    self._nodes.append(_Node(joint, parent, token, above.depth + 1, row))
        kept = set(self._best())
        best = heapq.nsmallest(self._width, (node for node in range(first, len(self._nodes))), key=self._rank)
        self.open = [node for node in best if node in kept and self._nodes[node].depth < self._budget.depth]

    def build(self, drafter: str) -> TreeBuilder:
        """The tree of the best nodes, as many as are worth their price."""
        tree, number = TreeBuilder(self._nodes[0].token, self._budget.nodes), {0: 0}
        best = self._best()
        for node in best:
            offered = self._nodes[node]
            chance = offered.joint / self._nodes[offered.parent].joint
            parent = number[offered.parent]
            number[node] = tree.add(parent, offered.token, "chosen", drafter=drafter, probability=chance)
        size = 1 + worthwhile([self._nodes[node].joint for node in best], self._budget.node_costs)
        return tree if size == tree.size else first_nodes(tree, size)

    def _best(self) -> list[int]:
        """The most probable nodes there is room for, the best first. None is better than its parent, so it is there."""
        return heapq.nsmallest(self._budget.nodes - 1, range(1, len(self._nodes)), key=self._rank)

    def _rank(self, node: int) -> tuple[float, int]:
        # of equally probable nodes the one that was offered first, which no child is before its parent
        return -self._nodes[node].joint, node

    def _path(self, node: int) -> list[int]:
        path = []
        while node:
            path.append(self._nodes[node].token)
            node = self._nodes[node].parent
        return path[::-1]
