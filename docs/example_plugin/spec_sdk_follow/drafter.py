"""A drafter that needs no model: what followed the pending token last time will follow it again."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import Budget, Drafter, Request, option
from spec_sdk.tree import TokenTree


@dataclass
class FollowConfig:
    """The options: each has a default, a line about it, and its valid values."""

    length: int = option(4, "most tokens to propose", minimum=1)


class Follow(Drafter):
    """Proposes the tokens that followed the last earlier occurrence of the pending token."""

    name = "follow"
    Config = FollowConfig
    config: FollowConfig

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        """A chain of chosen tokens; the root alone if the pending token is new."""
        root, earlier = request.pending_token, request.tokens[:-1]
        for i in range(len(earlier) - 1, -1, -1):
            if earlier[i] == root:
                length = min(self.config.length, budget.depth)
                # a token chosen without a random number is a point mass; the verifier knows what to do with it
                return TokenTree.chain(root, request.tokens[i + 1 :][:length], kind="chosen", drafter=self.name)
        return TokenTree.root_only(root)
