"""What a size takes is learned, and forgotten where it is not met for long."""

from __future__ import annotations

import pytest

from spec_sdk.running_times import FORGET_AFTER, RunningTime, SizeTimes


def met(times: SizeTimes, count: int) -> None:
    """So many passes of one and of two rows, a row taking a tenth of the rest."""
    for _ in range(count // 2):
        times.add(1, 1.0)
        times.add(2, 1.1)


def test_what_was_slow_once_is_predicted_from_the_other_sizes_in_the_end() -> None:
    times = SizeTimes()
    met(times, 20)
    for _ in range(4):
        times.add(5, 9.0)
    met(times, FORGET_AFTER // 2)
    assert times.at(5) > 4
    met(times, FORGET_AFTER)
    assert times.at(5) == pytest.approx(1.4, rel=0.01)
    assert times.samples(3) == 0


def test_one_row_is_never_forgotten() -> None:
    times = SizeTimes()
    times.add(1, 1.0)
    for _ in range(3 * FORGET_AFTER):
        times.add(4, 2.0)
    assert times.samples(1) > times.samples(2)


def test_what_is_met_now_and_then_is_kept() -> None:
    times = SizeTimes()
    for _ in range(8):
        times.add(5, 3.0)
        met(times, FORGET_AFTER // 2)
    assert times.samples(3) == 8


def test_a_size_without_samples_is_not_met() -> None:
    times = SizeTimes()
    times.of_size[1] = RunningTime()
    assert not times.has_met(1) and not times.has_met(0)
    times.add(4, 2.0)
    assert times.has_met(1) and times.has_met(4) and not times.has_met(5)
