"""A verifier with an acceptance rule of its own."""

from __future__ import annotations

from spec_sdk.contracts import Verifier
from spec_sdk.ops import Decision, DrawnTree, Rows, Uniforms, accepts


class FirstDraws(Verifier):
    """Tries the first draw of every node and no other: what a tree's further branches bring."""

    name = "first_draws"
    guarantee = "distribution"
    exact_when_greedy = True

    def rule(self, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
        path = [0]
        while True:
            left = rows.left(path[-1])
            draw = next(iter(tree.draws_N[path[-1]]), None)
            if draw is not None and accepts(left.p(tree.token_N[draw.node]), left.q(draw), uniforms(1)[0]):
                path.append(draw.node)
                continue
            if draw is not None:
                left.reject(draw, last=True)
            return path, left.draw(uniforms(1)[0])
