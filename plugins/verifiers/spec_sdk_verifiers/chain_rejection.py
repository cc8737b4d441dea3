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
        """Raises ValueError, naming the node, for a node with more than one draw: that is no chain.

        Random numbers are taken as ``multi_step`` takes them: one for each token of the chain, and one for the next.
        """
        require_chain(tree, self.name)
        sampler = request.sampler
        if sampler.greedy:
            return follow_choices(tree, logits_NV, request)
        uniform_D = request.uniforms(tree.draw_count + 1)
        decided = sampler.rejection(tree, logits_NV, uniform_D, request.step)
        if decided is not None:
            return Verdict(*decided, tree)
        *uniforms, last = uniform_D.tolist()
        path = [0]
        while True:
            p_V = target_law(sampler, logits_NV, path[-1])
            draws = tree.draws_N[path[-1]]
            if not draws:
                return Verdict(path, sampler.draw(p_V, last), tree)
            draw, uniform = draws[0], uniforms[len(path) - 1]
            token = tree.token_N[draw.node]
            drawn_from_V = draw.q_V
            if drawn_from_V is None:
                accepted = sampler.accepts(float(p_V[token]), 1.0, uniform)
                rest_V = p_V if accepted else sampler.without(p_V, token)
            else:
                q_V = drawn_from_V.to(p_V.device)
                accepted = sampler.accepts(float(p_V[token]), draft_probability(q_V, tree, draw), uniform)
                rest_V = p_V if accepted else sampler.residual(p_V, q_V)
            if not accepted:
                return Verdict(path, sampler.draw(rest_V, last), tree)
            path.append(draw.node)
