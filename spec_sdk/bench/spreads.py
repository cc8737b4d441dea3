"""The middle of some numbers, and how far they lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

FEWEST_FOR_QUARTILES = 4


@dataclass(frozen=True)
class Spread:
    """``median`` of ``count`` numbers; ``low`` and ``high`` are the quartiles, of fewer than four the least and the
    largest.
    """

    median: float
    low: float
    high: float
    count: int


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Of those that are finite numbers; None if there is none."""
    numbers = sorted(value for value in values if value is not None and math.isfinite(value))
    if not numbers:
        return None
    low, high = numbers[0], numbers[-1]
    if len(numbers) >= FEWEST_FOR_QUARTILES:
        low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return Spread(statistics.median(numbers), low, high, len(numbers))
