"""How long a text the programs of a benchmark are asked to go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_sdk.errors import UserError

if TYPE_CHECKING:
    from spec_sdk.bench.interleaved import Plan

SPARE = 16
"""Tokens by which an answer may grow, besides an eighth, when it is read as a part of the next prompt."""


def longest_text(plan: Plan) -> int:
    """Tokens of the longest prompt with its answer, earlier turns' answers included; at most the plan's context."""
    longest = 2
    for conversation in plan.conversations:
        turns = conversation.length
        try:
            asked = conversation.tokens(plan.tokenizer, plan.chat, [""] * (turns - 1))
        except UserError:
            continue
        longest = max(longest, len(asked) + turns * (plan.new_tokens + plan.new_tokens // 8 + SPARE))
    return min(longest, plan.context)
