"""No constraint."""

from __future__ import annotations

from spec_sdk.contracts import AnyTokens, Constraint
from spec_sdk.model.tokenizer import Tokenizer


class NoConstraint(Constraint):
    """Answers may be anything."""

    name = "none"

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> AnyTokens:
        return AnyTokens()
