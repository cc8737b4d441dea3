"""How well some prompts tell what all such prompts would give: a confidence interval of a median."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """``median`` of ``count`` numbers, and its percentile bootstrap interval of ``CONFIDENCE``: of the medians of
    samples, as large, that are drawn from the numbers with replacement (Efron 1979).

    Of few numbers it is too narrow: no sample has what lies beyond the least and the largest of them.
    """

    median: float
    low: float
    high: float
    count: int


def interval_of(values: Iterable[float | None]) -> Interval | None:
    """Of those that are finite numbers; None if there is none. The same values give the same interval in any order.

    Values that are ratios of two runs of one prompt keep their pairs: a prompt is drawn with both of its runs.
    """
    numbers = np.sort([value for value in values if value is not None and math.isfinite(value)])
    if not len(numbers):
        return None
    drawn = np.random.default_rng(0).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    medians = np.median(numbers[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(numbers)), float(low), float(high), len(numbers))
