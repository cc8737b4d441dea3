"""The time of one stage by the size of its work: running means, drawn towards a line or towards a cost curve."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable

WINDOW = 16
"""Samples kept of each time: old ones are of another load, or another prefix length."""
OUTLIER = 3.0
"""A sample counts for at most so many medians: a compilation or a page fault is no property of the stage."""
FORGET_AFTER = 512
"""A size that was not met for so many samples is predicted from the others: the machine may have been busy then, and
what looks dear is not met again.
"""
LINE_WEIGHT = 2.0
"""A size's own samples and what all sizes together say of it: the latter counts as so many samples."""


class RunningTime:
    """The mean of the latest samples, outliers cut down to ``OUTLIER`` medians."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=WINDOW)
        self.count = 0
        self.mean = 0.0

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        self.count = len(self._samples)
        ranked = sorted(self._samples)
        if len(ranked) == 2:
            # two samples cannot say which of them is the outlier; a first call often compiles something
            self.mean = ranked[0]
            return
        largest = OUTLIER * ranked[len(ranked) // 2]
        kept = bisect_right(ranked, largest)
        self.mean = (sum(ranked[:kept]) + largest * (len(ranked) - kept)) / len(ranked)


class SizeTimes:
    """The time of one stage by size: each size's own mean, drawn towards a line through the means of all. That of size
    1, beside which others are weighed, is never forgotten.

    With ``shape``, seconds by size as they were measured before, it is drawn towards a multiple of that instead.
    """

    def __init__(self) -> None:
        self.of_size: dict[int, RunningTime] = {}
        self._met: dict[int, int] = {}
        self._added = 0
        self._shape: Callable[[int], float] | None = None
        self._line: tuple[float, float] | None = None

    def samples(self, least: int) -> int:
        """Samples kept of sizes of ``least`` or more."""
        return sum(time.count for size, time in self.of_size.items() if size >= least)

    def has_met(self, least: int) -> bool:
        """Whether a sample is kept of a size of ``least`` or more."""
        return any(time.count for size, time in self.of_size.items() if size >= least)

    def add(self, size: int, seconds: float) -> None:
        self.of_size.setdefault(size, RunningTime()).add(seconds)
        self._line = None
        self._added += 1
        self._met[size] = self._added
        if self._added % (FORGET_AFTER // 4) == 0:
            for old in [known for known, met in self._met.items() if met <= self._added - FORGET_AFTER and known > 1]:
                del self.of_size[old], self._met[old]

    def follow(self, shape: Callable[[int], float]) -> None:
        """Go by ``shape`` from now on."""
        self._shape, self._line = shape, None

    @property
    def line(self) -> tuple[float, float]:
        """Intercept and slope of the line that sizes are drawn towards, neither negative; a shape's are 0 and its
        multiple. Call it only after a sample was added.
        """
        if self._line is None:
            self._line = self._fit()
        return self._line

    def at(self, size: int) -> float:
        """The expected time at ``size``. Call it only after a sample was added."""
        intercept, slope = self.line
        expected = intercept + slope * (size if self._shape is None else self._shape(size))
        own = self.of_size.get(size)
        if own is None:
            return expected
        count = own.count
        return (count * own.mean + LINE_WEIGHT * expected) / (count + LINE_WEIGHT)

    def _fit(self) -> tuple[float, float]:
        """Weighted least squares: intercept and slope, neither negative. On a shape the intercept is 0."""
        points = [(size, time.mean, time.count) for size, time in self.of_size.items() if time.count]
        weight = sum(n for _, _, n in points)
        if self._shape is not None:
            shape = self._shape
            return 0.0, sum(n * seconds / shape(size) for size, seconds, n in points) / weight
        if len(points) == 1:
            # one size cannot tell a fixed cost from a cost per token: half and half, so that others get tried
            size, seconds, _ = points[0]
            return seconds / 2, seconds / (2 * size)
        x = sum(n * size for size, _, n in points) / weight
        y = sum(n * seconds for _, seconds, n in points) / weight
        spread = sum(n * (size - x) ** 2 for size, _, n in points)
        slope = max(0.0, sum(n * (size - x) * (seconds - y) for size, seconds, n in points) / spread)
        if y < slope * x:
            return 0.0, y / x
        return y - slope * x, slope
