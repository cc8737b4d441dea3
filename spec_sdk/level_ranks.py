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
    first children goes before all others, then whose path left that of first children once, by its second child. Of
    equals the earlier child goes first. That is about the order in which growths leave nodes out where they have room
    for fewer.
    """
    if tree.size == tree.depth + 1:
        return [1] * (len(path) - 1)
    children, order_N = [0] * tree.size, [(0, 0)]
    for node in range(1, tree.size):
        parent = tree.parent_N[node]
        place, children[parent] = children[parent], children[parent] + 1
        order_N.append((order_N[parent][0] + place, place))
    ranks = []
    for node in path[1:]:
        depth, own = tree.depth_N[node], (order_N[node], node)
        ranks.append(1 + sum(tree.depth_N[i] == depth and (order_N[i], i) < own for i in range(1, tree.size)))
    return ranks
