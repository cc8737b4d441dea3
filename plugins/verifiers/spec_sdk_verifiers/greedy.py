"""Greedy verification: keep the drafted tokens that the target itself would have chosen."""

from __future__ import annotations

import torch

from spec_sdk.contracts import Request, SamplingParams, Verdict, Verifier
from spec_sdk.errors import UserError
from spec_sdk.tree import TokenTree


class Greedy(Verifier):
    """Follows the target's most probable token through any tree, however its tokens were drafted (temperature 0)."""

    name = "greedy"
    rule = "greedy"
    guarantee = "exact"

    def check(self, params: SamplingParams) -> None:
        if params.temperature != 0:
            raise UserError(
                f"verifier 'greedy' needs sampling.temperature=0, it is {params.temperature}; "
                "verifier=multi_step samples without loss"
            )

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """Raises UserError if the request's sampler is not greedy."""
        self.check(request.sampler.params)
        return super().verify(tree, logits_NV, request)
