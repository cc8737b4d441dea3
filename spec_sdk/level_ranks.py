"""Where in its level a node of a token tree stands: what a narrower tree would have kept of an accepted path."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.tree import TokenTree


def level_sizes(tree: TokenTree) -> list[int]:
    """Nodes of every level below the root."""
    sizes = [0] * tree.depth
    for depth in tree.depth_N[1:]:
        sizes[depth - 1] += 1
    return sizes


def level_ranks(tree: TokenTree, path: Sequence[int]) -> list[int]:
    """The rank among its level's nodes, from 1, of every node of ``path`` below the root.

    Nodes are ranked by how late they were drafted as children, summed up along the path from the root: a first child of
    first children goes before all others, then whose path left that of first children once, by its second child, early
    before late. That is about the order in which growths leave nodes out where they have room for fewer.
    """
    if tree.size == tree.depth + 1:
        return [1] * (len(path) - 1)
    children, place_N, late_N = [0] * tree.size, [0] * tree.size, [0] * tree.size
    levels: list[list[int]] = [[] for _ in range(tree.depth + 1)]
    for node in range(1, tree.size):
        parent = tree.parent_N[node]
        place_N[node], children[parent] = children[parent], children[parent] + 1
        late_N[node] = late_N[parent] + place_N[node]
        levels[tree.depth_N[node]].append(node)
    rank_N = [1] * tree.size
    for level in levels[1 : len(path)]:
        level.sort(key=lambda node: (late_N[node], place_N[node], rank_N[tree.parent_N[node]]))
        for rank, node in enumerate(level, start=1):
            rank_N[node] = rank
    return [rank_N[node] for node in path[1:]]
