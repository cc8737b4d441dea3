"""TreeBuilder and TokenTree against a naive ancestor matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.testing import check_tree
from spec_sdk.tree import Draw, TokenTree, TreeBuilder
from tests.tree.random_trees import ancestors_or_self, builders


@settings(max_examples=200, deadline=None)
@given(builders())
def test_intervals_are_the_ancestor_relation(builder: TreeBuilder) -> None:
    """Both for the closed tree, whose starts are the indices, and for the growing one, in creation order."""
    start, end = builder.intervals()
    growing = ancestors_or_self(builder.parent)
    built = builder.build()
    closed = ancestors_or_self(list(built.tree.parent_N))
    for i in range(builder.size):
        for j in range(builder.size):
            assert (start[i] <= start[j] < end[i]) == growing[i][j]
            assert (i <= j < built.tree.end_N[i]) == closed[i][j]
            assert closed[built.preorder[i]][built.preorder[j]] == growing[i][j]


@settings(max_examples=200, deadline=None)
@given(builders())
def test_closing_a_tree_renumbers_it_and_changes_nothing_else(builder: TreeBuilder) -> None:
    built = builder.build()
    tree = built.tree
    check_tree(tree)
    assert sorted(built.preorder) == list(range(builder.size))
    for slot, position in enumerate(built.preorder):
        assert tree.token_N[position] == builder.token[slot]
        assert tree.depth_N[position] == builder.depth[slot]
        assert tree.path_to(position)[0] == 0
        assert len(tree.path_to(position)) == builder.depth[slot] + 1
        if slot:
            assert tree.parent_N[position] == built.preorder[builder.parent[slot]]
        draws = [(built.preorder[d.node], d.kind, d.q_V, d.drafter) for d in builder.draws[slot]]
        assert [(d.node, d.kind, d.q_V, d.drafter) for d in tree.draws_N[position]] == draws
    assert tree.depth == max(builder.depth)


@settings(max_examples=200, deadline=None)
@given(builders())
def test_siblings_stand_in_the_order_of_their_first_draw(builder: TreeBuilder) -> None:
    tree = builder.build().tree
    for node in range(tree.size):
        children = [i for i in range(tree.size) if tree.parent_N[i] == node]
        assert list(dict.fromkeys(draw.node for draw in tree.draws_N[node])) == children


@given(st.integers(1, 6), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_repeated_draws_merge_and_keep_their_number(root: int, tokens: list[int]) -> None:
    builder = TreeBuilder(root)
    q_V = torch.full((4,), 0.25)
    nodes = [builder.add(0, token, "with_replacement", q_V) for token in tokens]
    assert builder.size == 1 + len(set(tokens))
    assert len(set(zip(nodes, tokens, strict=True))) == len(set(tokens))
    tree = builder.build().tree
    assert [tree.token_N[draw.node] for draw in tree.draws_N[0]] == tokens
    assert all(draw.q_V is q_V for draw in tree.draws_N[0])


@pytest.mark.parametrize("shape", ["chain", "star", "binary"])
def test_a_hundred_thousand_nodes(shape: str) -> None:
    """No recursion, and nothing of size N × N: either would end here."""
    size = 100_000
    builder = TreeBuilder(0, max_nodes=size)
    for node in range(1, size):
        parent = {"chain": node - 1, "star": 0, "binary": (node - 1) // 2}[shape]
        builder.add(parent, node, "chosen")
    tree = builder.build().tree
    check_tree(tree)
    assert tree.size == size
    assert tree.depth == {"chain": size - 1, "star": 1, "binary": 16}[shape]
    assert len(tree.path_to(tree.size - 1)) == tree.depth_N[-1] + 1


def test_shortcuts() -> None:
    root = TokenTree.root_only(5)
    check_tree(root)
    assert (root.size, root.depth, root.path_to(0)) == (1, 0, [0])
    chain = TokenTree.chain(5, [6, 7, 7], drafter="test")
    check_tree(chain)
    assert (chain.token_N, chain.parent_N, chain.end_N) == ((5, 6, 7, 7), (-1, 0, 1, 2), (4, 4, 4, 4))
    assert [draw.drafter for draws in chain.draws_N for draw in draws] == ["test"] * 3
    assert TokenTree.chain(5, []) == root


def sound_tree() -> TokenTree:
    builder, q_V = TreeBuilder(1), torch.tensor([0.5, 0.25, 0.25, 0.0])
    left = builder.add(0, 0, "without_replacement", q_V)
    builder.add(0, 2, "without_replacement", q_V)
    builder.add(left, 3, "chosen")
    return builder.build().tree


def with_root_draws(*draws: Draw) -> TokenTree:
    tree = sound_tree()
    return replace(tree, draws_N=(draws, *tree.draws_N[1:]))


Q_V = torch.tensor([0.5, 0.25, 0.25, 0.0])


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        (replace(sound_tree(), token_N=(1, 0, 3, 0)), "two children of one token"),
        (with_root_draws(Draw(1, "chosen")), r"node 0 has the children \[1, 3\], its draws name \[1\]"),
        (with_root_draws(Draw(3, "chosen"), Draw(1, "chosen")), "not in the order in which they were first drawn"),
        (with_root_draws(Draw(1, "chosen"), Draw(2, "chosen")), r"its draws name \[1, 2\]"),
        (with_root_draws(Draw(1, "chosen", Q_V), Draw(3, "chosen")), "a chosen token has no q_V"),
        (with_root_draws(Draw(1, "with_replacement"), Draw(3, "chosen")), "needs its q_V"),
        (
            with_root_draws(Draw(1, "with_replacement", np.ones(4) / 4), Draw(3, "chosen")),  # type: ignore[arg-type]
            "its q_V is of type ndarray, and no tensor",
        ),
        (with_root_draws(Draw(1, "guessed", Q_V), Draw(3, "chosen")), "unknown kind 'guessed'"),  # type: ignore[arg-type]
        (
            with_root_draws(*(Draw(node, "without_replacement", Q_V, sequence=4) for node in (1, 3, 1))),
            "token 0 was drawn before, and this is without replacement",
        ),
        (
            with_root_draws(*(Draw(node, "without_replacement", Q_V.clone(), sequence=4) for node in (1, 3))),
            "sequence 4 without replacement has draws from two distributions",
        ),
        (with_root_draws(Draw(1, "with_replacement", 2 * Q_V), Draw(3, "chosen")), "q_V sums to 2.0"),
        (with_root_draws(Draw(1, "with_replacement", Q_V.flip(0)), Draw(3, "chosen")), "no probability"),
        (with_root_draws(Draw(1, "chosen"), Draw(3, "with_replacement", torch.tensor([0.5, 0.5]))), "lies outside q_V"),
        (
            with_root_draws(Draw(1, "with_replacement", torch.tensor([1.5, -0.5, 0.0])), Draw(3, "chosen")),
            "negative or NaN",
        ),
    ],
)
def test_check_tree_names_what_is_wrong(tree: TokenTree, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_tree(tree)
