"""Multi-step speculative sampling on any tree (SpecInfer, Miao et al. 2024), for children drawn in any way.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Request, Verdict, Verifier
from spec_sdk.tree import TokenTree
from spec_sdk_verifiers.greedy import follow_choices
from spec_sdk_verifiers.laws import draft_probability, target_law


class MultiStep(Verifier):
    """Tries a node's draws one after the other, each against what the rejected ones have left of the target's law.

    With p the law left so far, a token x drawn from q is accepted with min(1, p(x)/q(x)), else p becomes
    norm(max(p − q, 0)); a chosen x is accepted with p(x), else p loses x. Draws without replacement
    also take their token from q for the draws after them in their sequence. A token drawn twice is tried twice.
    """

    name = "multi_step"
    aliases = ("specinfer",)
    guarantee = "distribution"
    exact_when_greedy = True

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """Takes one random number for each draw of the tree and one for the next token, whatever becomes of them.

        Decided by the sampler in one go where it can (:meth:`Sampler.rejection`), else node by node, which gives the
        same tokens.
        """
        if request.sampler.greedy:
            return follow_choices(tree, logits_NV, request)
        uniform_D = request.uniforms(tree.draw_count + 1)
        # a rule that was changed in a subclass is its own business, of which a sampler knows nothing
        if type(self)._try_children is MultiStep._try_children:
            decided = request.sampler.rejection(tree, logits_NV, uniform_D, request.step)
            if decided is not None:
                return Verdict(*decided, tree)
        first_N, uniforms = tree.first_draw_N1, uniform_D.tolist()
        path = [0]
        while True:
            p_V = target_law(request.sampler, logits_NV, path[-1])
            child, rest_V = self._try_children(tree, path[-1], p_V, request, uniforms[first_N[path[-1]] :])
            if child is None:
                return Verdict(path, request.sampler.draw(rest_V, uniforms[-1]), tree)
            path.append(child)

    def _try_children(
        self, tree: TokenTree, node: int, p_V: torch.Tensor, request: Request, uniforms: Sequence[float]
    ) -> tuple[int | None, torch.Tensor]:
        """The accepted child, or None; and what is left of ``p_V``. ``uniforms`` begin with the first draw's."""
        sampler = request.sampler
        undrawn: dict[int, torch.Tensor] = {}
        for draw, uniform in zip(tree.draws_N[node], uniforms, strict=False):
            token = tree.token_N[draw.node]
            p = float(p_V[token])
            drawn_from_V = draw.q_V
            if drawn_from_V is None:
                if sampler.accepts(p, 1.0, uniform):
                    return draw.node, p_V
                p_V = sampler.without(p_V, token)
                continue
            q_V = undrawn[draw.sequence] if draw.sequence in undrawn else drawn_from_V.to(p_V.device)
            if sampler.accepts(p, draft_probability(q_V, tree, draw), uniform):
                return draw.node, p_V
            p_V = sampler.residual(p_V, q_V)
            if draw.sequence is not None:
                undrawn[draw.sequence] = sampler.without(q_V, token)
        return None, p_V
