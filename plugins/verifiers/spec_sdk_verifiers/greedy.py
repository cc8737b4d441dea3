"""Greedy verification: keep the drafted tokens that the target itself would have chosen."""

from __future__ import annotations

import torch

from spec_sdk.contracts import Guarantee, Request, SamplingParams, Verdict, Verifier
from spec_sdk.errors import UserError
from spec_sdk.tree import TokenTree


class Greedy(Verifier):
    """Follows the target's most probable token through any tree, however its tokens were drafted (temperature 0)."""

    name = "greedy"
    guarantee = "exact"

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        if params.temperature != 0:
            raise UserError(
                f"verifier 'greedy' needs sampling.temperature=0, it is {params.temperature}; "
                "verifier=multi_step samples without loss"
            )
        return self.guarantee

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """Raises UserError if the request's sampler is not greedy."""
        self.guarantee_under(request.sampler.params)
        return follow_choices(tree, logits_NV, request)


def follow_choices(tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
    """The path of nodes whose tokens are the target's greedy choices, and its choice where the path leaves the tree."""
    choices = request.sampler.choices(logits_NV)
    path = [0]
    while True:
        choice = choices[path[-1]]
        child = next((draw.node for draw in tree.draws_N[path[-1]] if tree.token_N[draw.node] == choice), None)
        if child is None:
            return Verdict(path, choice, tree)
        path.append(child)
