"""Greedy verification: keep the drafted tokens that the target itself would have chosen."""

from __future__ import annotations

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.errors import UserError


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
