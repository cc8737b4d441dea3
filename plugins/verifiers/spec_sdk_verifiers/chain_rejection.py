"""Speculative sampling on a chain (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2).

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.greedy import follow_choices
from spec_sdk_verifiers.laws import draft_probability, require_chain, target_law


class ChainRejection(Verifier):
    """Accepts each token x of a chain with min(1, p(x)/q(x)); redraws the first rejected one from norm(max(p − q, 0)).

    A chosen token is drawn from a point mass: accepted with p(x), redrawn from p without x.
    """

    name = "chain_rejection"
    aliases = ("chain",)
    guarantee = "distribution"
    exact_when_greedy = True
    chains_only = True

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """Raises ValueError, naming the node, for a node with more than one draw: that is no chain."""
        require_chain(tree, self.name)
        sampler, rng = request.sampler, request.rng
        if sampler.greedy:
            return follow_choices(tree, logits_NV, request)
        path = [0]
        while True:
            p_V = target_law(sampler, logits_NV, path[-1])
            draws = tree.draws_N[path[-1]]
            if not draws:
                return Verdict(path, sampler.draw(p_V, rng), tree)
            draw = draws[0]
            token = tree.token_N[draw.node]
            if draw.q_V is None:
                accepted = sampler.accepts(float(p_V[token]), 1.0, rng)
                rest_V = p_V if accepted else sampler.without(p_V, token)
            else:
                q_V = draw.q_V.to(p_V.device)
                accepted = sampler.accepts(float(p_V[token]), draft_probability(q_V, tree, draw), rng)
                rest_V = p_V if accepted else sampler.residual(p_V, q_V)
            if not accepted:
                return Verdict(path, sampler.draw(rest_V, rng), tree)
            path.append(draw.node)
