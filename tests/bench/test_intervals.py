"""The confidence interval of a median."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spec_sdk.bench.figures import figures_of
from spec_sdk.bench.intervals import Interval, interval_of
from spec_sdk.bench.records import Setting
from spec_sdk.bench.show import interval_cell
from tests.bench.answers import answer, run_of


def test_it_has_the_true_median_as_often_as_it_says() -> None:
    """Of 30 numbers from a skewed distribution, in 400 trials. Quartiles, or an interval of 80 %, are far from that."""
    random = np.random.default_rng(5)
    trials = [random.lognormal(0.3, 0.4, 30) for _ in range(400)]
    true = math.exp(0.3)
    found = [interval_of(trial) for trial in trials]
    covered = np.mean([each is not None and each.low <= true <= each.high for each in found])
    assert 0.92 < covered < 0.985


def test_it_narrows_with_the_square_root_of_the_count() -> None:
    random = np.random.default_rng(6)
    few, many = (interval_of(random.normal(2.0, 0.5, count)) for count in (25, 400))
    assert few is not None and many is not None
    assert 2.5 < (few.high - few.low) / (many.high - many.low) < 6.5


def test_small_cases() -> None:
    assert interval_of([None, math.nan, math.inf]) is None
    assert interval_of([1.5]) == Interval(1.5, 1.5, 1.5, 1)
    assert interval_of([2.0, 1.0]) == interval_of([1.0, None, 2.0]) == Interval(1.5, 1.0, 2.0, 2)
    assert [interval_cell(interval_of(of)) for of in ([], [1.5], [1.0, 2.0])] == ["–", "1.50", "1.50 (1.00–2.00)"]


def test_it_is_of_paired_ratios() -> None:
    """Prompts that differ by far, each of which is 1.2 times as fast: no doubt about that."""
    seconds = {f"p{i}": 1.5**i for i in range(12)}
    records = [
        answer(name, prompt, 10, s / by)
        for prompt, s in seconds.items()
        for name, by in (("vanilla", 1), ("fast", 1.2))
    ]
    fast = figures_of(run_of(records), "fast", Setting(0.0, 1))
    assert fast is not None and fast.speedup_interval is not None
    assert [fast.speedup_interval.low, fast.speedup_interval.high] == pytest.approx([1.2, 1.2])
