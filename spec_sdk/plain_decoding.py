"""The plugins of a vanilla baseline, which no registry offers: every cycle is a plain step of the target."""

from __future__ import annotations

from spec_sdk.contracts import Budget, Drafter, Policy, Request, Verifier
from spec_sdk.tree import TokenTree


class NoDrafting(Drafter):
    """Drafts nothing."""

    name = "none"

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)


class PlainDraws(Verifier):
    """Its trees are roots, after which a token of the target is drawn."""

    name = "plain"
    rule = "multi_step"
    guarantee = "distribution"
    exact_when_greedy = True


class NeverSpeculate(Policy):
    """Grants no draft."""

    name = "never"

    def budget(self, request: Request) -> Budget:
        return Budget(0)
