"""Speculative sampling on a chain (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2)."""

from __future__ import annotations

from spec_sdk.contracts import Verifier


class ChainRejection(Verifier):
    """Accepts each token x of a chain with min(1, p(x)/q(x)); redraws the first rejected one from norm(max(p − q, 0)).

    A chosen token is drawn from a point mass: accepted with p(x), redrawn from p without x. This is what
    :func:`~spec_sdk.ops.acceptance.multi_step` does on a chain, and with the same random numbers.
    """

    name = "chain_rejection"
    aliases = ("chain",)
    rule = "multi_step"
    guarantee = "distribution"
    exact_when_greedy = True
    chains_only = True
