"""No drafting: plain decoding."""

from __future__ import annotations

from spec_sdk.contracts import Budget, Drafter, Request
from spec_sdk.tree import TokenTree


class NoDraft(Drafter):
    """Proposes nothing, so that every cycle is a plain decoding step."""

    name = "none"
    drafts = False

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)
