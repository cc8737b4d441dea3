"""Are the draws of a token tree sound?

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.draws import DRAW_KINDS
from spec_sdk.tree import DraftDistribution, Draw, TokenTree, same_distribution

MASS_TOLERANCE = 1e-4
"""How far the sum of a declared ``q_V`` may be from 1: float32 over a large vocabulary, with room."""


def check_tree(tree: TokenTree) -> None:
    """Raise AssertionError unless the draws of ``tree`` are sound. That it is a tree in pre-order, it checks itself.

    Each names a child of its node, every child has one, children stand in the order of their first draw, a drawn
    token has a distribution that sums to 1 and in which it is possible, a chosen one has none, and draws of one
    sequence without replacement are of different tokens from one distribution.
    """
    children: list[list[int]] = [[] for _ in tree.token_N]
    for node in range(1, tree.size):
        children[tree.parent_N[node]].append(node)
    checked: set[torch.Tensor] = set()
    for node, draws in enumerate(tree.draws_N):
        first_drawn = list(dict.fromkeys(draw.node for draw in draws))
        assert sorted(first_drawn) == children[node], (
            f"node {node} has the children {children[node]}, its draws name {sorted(first_drawn)}"
        )
        assert first_drawn == children[node], (
            f"node {node}: its children are not in the order in which they were first drawn, {first_drawn}"
        )
        tokens = [tree.token_N[child] for child in children[node]]
        assert len(set(tokens)) == len(tokens), f"node {node} has two children of one token: {tokens}"
        _check_draws(tree, node, draws, checked)


def _check_draws(tree: TokenTree, node: int, draws: tuple[Draw, ...], checked: set[torch.Tensor]) -> None:
    removed: dict[int, set[int]] = {}
    sources: dict[int, torch.Tensor | DraftDistribution] = {}
    for i, draw in enumerate(draws):
        where = f"node {node}, draw {i} (drafter {draw.drafter!r})"
        token = tree.token_N[draw.node]
        assert draw.kind in DRAW_KINDS, f"{where}: unknown kind {draw.kind!r}"
        if draw.kind == "chosen":
            assert draw.q_V is None, f"{where}: a chosen token has no q_V"
            continue
        assert draw.q_V is not None, f"{where}: a token drawn {draw.kind} needs its q_V"
        q_V: object = draw.q_V
        assert isinstance(q_V, torch.Tensor), f"{where}: its q_V is of type {type(q_V).__name__}, and no tensor"
        # tensors are hashed by object: no distribution is looked at twice
        if draw.q_V not in checked:
            _check_distribution(draw.q_V, where)
            checked.add(draw.q_V)
        assert token < draw.q_V.shape[0], f"{where}: token {token} lies outside q_V of {draw.q_V.shape[0]}"
        assert float(draw.q_V[token]) > 0, f"{where}: q_V gives the drawn token {token} no probability"
        if draw.sequence is not None and draw.source is not None:
            source = sources.setdefault(draw.sequence, draw.source)
            assert same_distribution(source, draw.source), (
                f"{where}: sequence {draw.sequence} without replacement has draws from two distributions"
            )
            gone = removed.setdefault(draw.sequence, set())
            assert token not in gone, f"{where}: token {token} was drawn before, and this is without replacement"
            gone.add(token)


def _check_distribution(q_V: torch.Tensor, where: str) -> None:
    assert q_V.dim() == 1 and q_V.is_floating_point(), f"{where}: q_V is {q_V.dtype} of shape {tuple(q_V.shape)}"
    assert bool((q_V >= 0).all()), f"{where}: q_V has negative or NaN entries"
    mass = float(q_V.double().sum())
    assert abs(mass - 1) < MASS_TOLERANCE, f"{where}: q_V sums to {mass}"
