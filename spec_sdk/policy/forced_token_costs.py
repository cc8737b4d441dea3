"""What of a cycle is no merit of drafting, and no cost of it: tokens that a constraint forced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.policy.learned import PLAIN_SAMPLES
from spec_sdk.policy.stage_times import StageTimes

FEW_ROWS = 8
"""Rows of a pass that takes hardly longer than one of a single row."""


@dataclass(frozen=True)
class ForcedTokens:
    """``taken``: rows of the target's pass before the tree's root. ``emitted``: forced tokens that the answer got."""

    taken: int = 0
    emitted: int = 0

    @staticmethod
    def of(event: Mapping[str, Any]) -> ForcedTokens:
        """Those of a ``cycle`` event."""
        told = event.get("constraint")
        if told is None:
            return ForcedTokens()
        taken = event["tree_nodes"] - 1 - sum(event["level_sizes"]) - told["added"]
        return ForcedTokens(taken, told["taken"] + told["added_accepted"])

    def timed_rows(self, rows: int, times: StageTimes) -> int:
        """The rows by which a pass without a draft is timed. Until plain steps were timed, those of a few forced tokens
        are left out: where every pass has some, no plain step would ever be timed, and nothing ever drafted.
        """
        return 1 if times.plain.count < PLAIN_SAMPLES and rows <= FEW_ROWS else rows

    def seconds(self, times: StageTimes) -> float:
        """What a plain step takes longer for the rows."""
        return max(0.0, times.verify(1 + self.taken) - times.plain.mean) if self.taken else 0.0
