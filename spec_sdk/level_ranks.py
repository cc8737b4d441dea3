"""Where in its level a node of a token tree stands: what a narrower tree would have kept of an accepted path."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.tree import TokenTree


class LevelRanks:
    """The rank of every node of ``tree`` among its level's, from 1, worked out at once. ``sizes``: nodes of every level
    below the root.

    Nodes are ranked by how late they were drafted as children, summed up along the path from the root: a first child of
    first children goes before all others, then whose path left that of first children once, by its second child, early
    before late. That is about the order in which growths leave nodes out where they have room for fewer.
    """

    def __init__(self, tree: TokenTree) -> None:
        size, deepest = tree.size, tree.depth
        self._rank_N = [1] * size
        if size == deepest + 1:
            self.sizes = [1] * deepest
            return
        parent_N, depth_N, rank_N = tree.parent_N, tree.depth_N, self._rank_N
        children, place_N, late_N = [0] * size, [0] * size, [0] * size
        levels: list[list[int]] = [[] for _ in range(deepest + 1)]
        for node in range(1, size):
            parent = parent_N[node]
            place_N[node] = place = children[parent]
            children[parent] = place + 1
            late_N[node] = late_N[parent] + place
            levels[depth_N[node]].append(node)
        for level in levels[1:]:
            if len(level) > 1:
                level.sort(key=lambda node: (late_N[node], place_N[node], rank_N[parent_N[node]]))
                for rank, node in enumerate(level, start=1):
                    rank_N[node] = rank
        self.sizes = [len(level) for level in levels[1:]]

    def along(self, path: Sequence[int]) -> list[int]:
        """Those of the nodes of ``path`` below the root."""
        return [self._rank_N[node] for node in path[1:]]
