"""What the stages of a cycle cost on this machine, from the times in its events. All times are in seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

WINDOW = 16
"""Samples kept of each time: old ones are of another load, or another prefix length."""
OUTLIER = 3.0
"""A sample counts for at most so many medians: a compilation or a page fault is no property of the stage."""
CATCH_UP = 16
"""Committed tokens not yet fed to the draft model, from which on feeding them counts apart from drafting."""
LINE_WEIGHT = 2.0
"""A depth's own samples and the line through all depths: the line counts as so many samples."""


class RunningTime:
    """The mean of the latest samples, outliers cut down to ``OUTLIER`` medians."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=WINDOW)
        self.mean = 0.0

    @property
    def count(self) -> int:
        return len(self._samples)

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        ranked = sorted(self._samples)
        if len(ranked) == 2:
            # two samples cannot say which of them is the outlier; a first call often compiles something
            self.mean = ranked[0]
            return
        largest = OUTLIER * ranked[len(ranked) // 2]
        kept = bisect_right(ranked, largest)
        self.mean = (sum(ranked[:kept]) + largest * (len(ranked) - kept)) / len(ranked)


class DepthTimes:
    """The time of one stage by depth: each depth's own mean, drawn towards a line through the means of all."""

    def __init__(self) -> None:
        self.of_depth: dict[int, RunningTime] = {}
        self._line: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        """Samples kept, of all depths but 0."""
        return sum(time.count for depth, time in self.of_depth.items() if depth)

    def add(self, depth: int, seconds: float) -> None:
        self.of_depth.setdefault(depth, RunningTime()).add(seconds)
        self._line = None

    def at(self, depth: int) -> float:
        """The expected time at ``depth`` (>= 1). Call it only after a sample of such a depth was added."""
        if self._line is None:
            self._line = self._fit()
        intercept, slope = self._line
        line, own = intercept + slope * depth, self.of_depth.get(depth)
        return line if own is None else (own.count * own.mean + LINE_WEIGHT * line) / (own.count + LINE_WEIGHT)

    def _fit(self) -> tuple[float, float]:
        """Weighted least squares: intercept and slope, neither negative."""
        points = [(depth, time.mean, time.count) for depth, time in self.of_depth.items()]
        if len(points) == 1:
            # one depth cannot tell a fixed cost from a cost per token: half and half, so that others get tried
            depth, seconds, _ = points[0]
            return seconds / 2, seconds / (2 * depth)
        weight = sum(n for _, _, n in points)
        x = sum(n * depth for depth, _, n in points) / weight
        y = sum(n * seconds for _, seconds, n in points) / weight
        spread = sum(n * (depth - x) ** 2 for depth, _, n in points)
        slope = max(0.0, sum(n * (depth - x) * (seconds - y) for depth, seconds, n in points) / spread)
        if y < slope * x:
            return 0.0, y / x
        return y - slope * x, slope


class StageTimes:
    """Times of a plain step, of drafting and verifying to a depth, and of catching up.

    Catching up is feeding the draft model the committed tokens that it has not seen: the prompt, if it was not started
    with the request, or what was decoded plainly since. ``drafts_with_model`` False makes it free until measured.
    ``silence``: a call in which nothing was proposed.
    """

    def __init__(self) -> None:
        self._draft = DepthTimes()
        self._verify = DepthTimes()
        self.plain = self._verify.of_depth[0] = RunningTime()
        self.silence = RunningTime()
        self._feed = RunningTime()
        self._prefill = RunningTime()
        self.drafts_with_model = True

    @property
    def known(self) -> bool:
        """Whether any draft was timed yet."""
        return self._draft.count > 0

    @property
    def settled(self) -> bool:
        """Whether there are enough samples to tell an outlier."""
        return self._draft.count >= 3 and self._verify.count >= 3

    def draft(self, depth: int) -> float:
        """Drafting to ``depth``, nothing to catch up with. Unmeasured: half a plain step per token, or nothing."""
        if self._draft.count:
            return self._draft.at(depth)
        return depth * self.plain.mean / 2 if self.drafts_with_model else 0.0

    def verify(self, depth: int) -> float:
        """Scoring and committing a tree of ``depth``. Unmeasured: a tenth of a plain step more per level."""
        if not self._verify.count:
            return self.plain.mean * (1 + depth / 10)
        return max(self.plain.mean, self._verify.at(depth))

    def catch_up(self, unfed: int) -> float:
        """Feeding ``unfed`` tokens. Unmeasured: half as long as the target's own prefill of so many."""
        if unfed < CATCH_UP:
            return 0.0
        if self._feed.count:
            return unfed * self._feed.mean
        return unfed * self._unmeasured_feed

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """The target's prefill."""
        if tokens >= CATCH_UP:
            self._prefill.add(seconds / tokens)

    def add_start(self, tokens: int, seconds: float) -> None:
        """The drafter's own prefill."""
        if tokens >= CATCH_UP:
            self._add_feed(seconds / tokens)

    def add_draft(self, depth: int, drafted: int, unfed: int, seconds: float) -> None:
        """A call for a draft of ``depth``, with ``unfed`` tokens not yet fed; ``drafted`` is how deep it came out."""
        if not drafted:
            self.silence.add(seconds)
        elif unfed < CATCH_UP:
            self._draft.add(depth, seconds)
        else:
            # a quarter at least, in case the guess of the draft itself is far too high
            self._add_feed(max(seconds - self.draft(depth), seconds / 4) / unfed)

    @property
    def _unmeasured_feed(self) -> float:
        return self._prefill.mean / 2 if self.drafts_with_model else 0.0

    def _add_feed(self, seconds: float) -> None:
        if not self._feed.count:
            # the guess stays as a sample: a first call that compiled something is then seen to be the outlier
            self._feed.add(self._unmeasured_feed)
        self._feed.add(seconds)

    def add_verify(self, depth: int, seconds: float) -> None:
        """A pass over a tree of ``depth``; 0 is a plain step."""
        self._verify.add(depth, seconds)
