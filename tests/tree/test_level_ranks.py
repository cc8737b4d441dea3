"""Ranks in a level: what narrower trees of the same growth would have kept."""

from __future__ import annotations

import random

from spec_sdk.level_ranks import LevelRanks
from spec_sdk.tree import TokenTree, TreeBuilder


def full(widths: list[int]) -> tuple[TokenTree, dict[tuple[int, ...], int]]:
    """A static tree, and its nodes by the places of the children on their paths."""
    builder, created = TreeBuilder(0), dict[tuple[int, ...], int]({(): 0})
    for width in widths:
        level = [path for path in created if len(path) == max(map(len, created))]
        for path in level:
            for place in range(width):
                created[*path, place] = builder.add(created[path], 10 * len(path) + place, "chosen")
    built = builder.build()
    return built.tree, {path: built.preorder[node] for path, node in created.items()}


def test_a_chain() -> None:
    tree = TokenTree.chain(0, [1, 2, 3])
    assert LevelRanks(tree).sizes == [1, 1, 1]
    assert LevelRanks(tree).along([0, 1, 2]) == [1, 1] and LevelRanks(tree).along([0]) == []
    assert LevelRanks(TokenTree.root_only(3)).sizes == []


def test_first_children_go_first_and_an_early_turn_before_a_late_one() -> None:
    tree, node = full([3, 2])
    assert LevelRanks(tree).sizes == [3, 6]
    ranked = {path: LevelRanks(tree).along(tree.path_to(node[path]))[-1] for path in node if len(path) == 2}
    assert sorted(ranked, key=lambda path: ranked[path]) == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (2, 1)]
    assert sorted(ranked.values()) == [1, 2, 3, 4, 5, 6]
    assert LevelRanks(tree).along(tree.path_to(node[2, 1])) == [3, 6]


def test_a_narrower_tree_keeps_the_first_of_every_level() -> None:
    """``[3, 2, 1]`` is narrowed to ``[2, 1, 1]`` and to a chain."""
    tree, node = full([3, 2, 1])
    assert LevelRanks(tree).along(tree.path_to(node[0, 0, 0])) == [1, 1, 1]
    assert LevelRanks(tree).along(tree.path_to(node[1, 0, 0])) == [2, 2, 2]
    others = [path for path in node if len(path) == 3 and path not in ((0, 0, 0), (1, 0, 0))]
    assert min(LevelRanks(tree).along(tree.path_to(node[path]))[-1] for path in others) == 3


def test_random_trees() -> None:
    rng = random.Random(0)
    for _ in range(50):
        builder = TreeBuilder(0)
        for token in range(rng.randint(1, 30)):
            builder.add(rng.randrange(builder.size), token, "chosen")
        tree = builder.build().tree
        sizes = LevelRanks(tree).sizes
        assert sum(sizes) == tree.size - 1
        for depth, size in enumerate(sizes, start=1):
            nodes = [i for i in range(tree.size) if tree.depth_N[i] == depth]
            assert sorted(LevelRanks(tree).along(tree.path_to(i))[-1] for i in nodes) == list(range(1, size + 1))
