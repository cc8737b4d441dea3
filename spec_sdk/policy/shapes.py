"""The shape of a tree, depth and nodes per level, with the most expected tokens for its time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from spec_sdk.contracts import Budget
from spec_sdk.policy.acceptance import WIDTHS
from spec_sdk.policy.stage_times import StageTimes

FIRST_WIDEST = WIDTHS.index(4)
"""Until a drafter has shown that it grows wider trees, none are asked for."""
NOT_FILLED = 3
"""Trees in a row that came out narrower than asked for, after which no wider ones are for a while."""
PATIENCE, LONGEST_PATIENCE = 16, 4096
"""That while is so many trees of the width that came out, and longer by this factor each time, up to the second."""
WORSE = 1.25
"""A depth or width by which the time per token is so many times that of the best: larger ones are not looked at."""


class Shape(NamedTuple):
    """A tree of ``depth`` levels, each of ``WIDTHS[width_index]`` nodes."""

    depth: int
    width_index: int

    @property
    def per_level(self) -> int:
        return WIDTHS[self.width_index]

    @property
    def nodes(self) -> int:
        """With the root."""
        return 1 + self.depth * self.per_level

    @property
    def budget(self) -> Budget:
        return Budget(self.depth, self.nodes)


class Widths:
    """How wide trees may be asked for: as a drafter has shown that it grows them, and the next width."""

    def __init__(self) -> None:
        self.widest = FIRST_WIDEST
        self._most = len(WIDTHS) - 1
        self._filled = self._not_filled = 0
        self._patience = 1

    def only_chains(self) -> None:
        """The drafter's trees do not branch."""
        self.widest = self._most = 0

    def observe(self, asked: Shape, level_sizes: Sequence[int]) -> int:
        """A tree that was asked for came out with these levels, one at least. Returns the width that it had."""
        largest = max(level_sizes)
        width = min(asked.width_index, bisect_left(WIDTHS, largest))
        if width < asked.width_index:
            self._not_filled += 1
            if self._not_filled >= NOT_FILLED:
                # for a while: drawn children may have coincided, or one of several drafters was silent
                self.widest, self._filled, self._not_filled = width, 0, 0
                self._patience = min(PATIENCE * self._patience, LONGEST_PATIENCE)
            return width
        self._not_filled = 0
        if width == self.widest:
            self._filled += 1
            if self._filled >= self._patience:
                self.widest, self._filled = min(width + 1, self._most), 0
        return width


def best_shape(
    times: StageTimes,
    expected: Sequence[Sequence[float]],
    deepest: int,
    silences_s: float = 0.0,
    most_s: float = math.inf,
) -> tuple[Shape | None, float]:
    """The shape with the least seconds per expected token, and those; None and infinity where there is none.

    ``expected[w][d - 1]``: tokens of a cycle with a tree of ``d`` levels of ``WIDTHS[w]`` nodes. ``silences_s``: what
    every such cycle has to carry besides. ``most_s``: longest that a cycle may take.
    """
    best, least = None, math.inf
    for width, tokens_of_depth in enumerate(expected):
        per_level, least_of_width = WIDTHS[width], math.inf
        for depth, tokens in enumerate(tokens_of_depth[:deepest], start=1):
            seconds = times.draft(depth, per_level) + times.verify(1 + depth * per_level)
            if seconds > most_s:
                break
            per_token = (seconds + silences_s) / tokens
            if per_token < least_of_width:
                least_of_width = per_token
                if per_token < least:
                    best, least = Shape(depth, width), per_token
            elif per_token > WORSE * least_of_width:
                break
        if least_of_width > WORSE * least:
            break
    return best, least
