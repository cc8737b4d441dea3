"""What requests that share a pass take of its time each.

Divided by rows, a pass that takes hardly longer for more rows would seem to: drafts would look dear beside plain steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.running_times import SizeTimes


class TimeShares:
    """An equal part of what passes of so many requests take whatever their rows, and by rows what these take more.

    Both are learned from the passes themselves, by a line through their times.
    """

    def __init__(self) -> None:
        self._of_count: dict[int, SizeTimes] = {}

    def divided(self, seconds: float, rows_B: Sequence[int]) -> list[float]:
        """The seconds of a pass over so many rows of each request, which add up to ``seconds``."""
        count = len(rows_B)
        if count < 2:
            return [seconds] * count
        times = self._of_count.setdefault(count, SizeTimes())
        times.add(sum(rows_B), seconds)
        fixed_s, row_s = times.line
        taken_B = [fixed_s / count + row_s * rows for rows in rows_B]
        taken = sum(taken_B)
        return [seconds * part / taken for part in taken_B] if taken else [seconds / count] * count
