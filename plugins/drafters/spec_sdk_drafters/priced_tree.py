"""The part of a tree that is worth what its nodes cost the target, where the drafter noted how probable they are."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.guessing import worthwhile


def worth_its_price(tree: TokenTree, node_costs: Sequence[float]) -> TokenTree:
    """The most probable nodes with the largest expected gain; the root alone where none is worth it.

    ``node_costs``: see :class:`Budget`; of an empty one nothing is left out. A node's probability is the product of
    those along its path. A tree stays whole if any of its tokens was drawn, or has no probability: whether a draw
    counts must not hang on what it gave.
    """
    draws = [draw for of_node in tree.draws_N for draw in of_node]
    if not node_costs or any(draw.kind != "chosen" or draw.probability is None for draw in draws):
        return tree
    own = {draw.node: draw for draw in draws}
    joint_N = [1.0]
    for node in range(1, tree.size):
        joint_N.append(joint_N[tree.parent_N[node]] * (own[node].probability or 0.0))
    # of two that are as probable a parent comes first, and no child is more probable than it
    best = sorted(range(1, tree.size), key=lambda node: (-joint_N[node], tree.depth_N[node], node))
    kept = sorted(best[: worthwhile([joint_N[node] for node in best], node_costs)])
    built, node_of = TreeBuilder(tree.token_N[0]), {0: 0}
    for node in kept:
        draw = own[node]
        node_of[node] = built.add(
            node_of[tree.parent_N[node]],
            tree.token_N[node],
            "chosen",
            drafter=draw.drafter,
            probability=draw.probability,
        )
    return built.build().tree
