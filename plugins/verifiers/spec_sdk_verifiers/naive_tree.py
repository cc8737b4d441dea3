"""Naive sampling on a tree (the baseline of SpecInfer, Miao et al. 2024): sample from the target, follow a match.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.greedy import follow_choices
from spec_sdk_verifiers.laws import target_law


class NaiveTree(Verifier):
    """Draws each next token from the target's law and goes on from the child that carries it, if there is one.

    Every emitted token is a draw of the target's, so the law holds for any tree, however it was drafted, and needs no
    ``q_V``. A drawn child x is accepted with p(x) only, where ``multi_step`` accepts with min(1, p(x)/q(x)).
    """

    name = "naive_tree"
    guarantee = "distribution"
    exact_when_greedy = True

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        if request.sampler.greedy:
            return follow_choices(tree, logits_NV, request)
        path = [0]
        while True:
            token = request.sampler.draw(target_law(request.sampler, logits_NV, path[-1]), request.rng)
            child = next((draw.node for draw in tree.draws_N[path[-1]] if tree.token_N[draw.node] == token), None)
            if child is None:
                return Verdict(path, token, tree)
            path.append(child)
