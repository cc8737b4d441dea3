"""The share of the cores that others had, by counters that are told what to say."""

from __future__ import annotations

import pytest

from benchmarks.support.disturbance import Others, counters

START = {"user": 100.0, "nice": 5.0, "system": 10.0, "idle": 50.0, "iowait": 1.0, "steal": 0.0, "guest": 3.0}


@pytest.mark.parametrize(
    ("spent", "own", "expected"),
    [
        ({"user": 10.0, "idle": 10.0}, 10.0, 0.0),
        ({"user": 10.0, "nice": 4.0, "system": 1.0, "idle": 4.0, "steal": 1.0}, 9.0, 7 / 20),
        ({"idle": 19.0, "iowait": 1.0, "guest": 7.0}, 0.0, 0.0),
        # clocks of the process and of the machine do not tick together
        ({"user": 10.0, "idle": 10.0}, 10.5, 0.0),
        ({}, 0.0, 0.0),
    ],
)
def test_others_are_who_is_neither_idle_nor_this_process(spent: dict[str, float], own: float, expected: float) -> None:
    now = {name: value + spent.get(name, 0.0) for name, value in START.items()}
    told = iter([(START, 2.0), (now, 2.0 + own)])
    assert Others(lambda: next(told)).share() == pytest.approx(expected)


def test_this_machine_has_counters() -> None:
    times, own = counters()
    assert times["idle"] > 0 and own > 0
    assert 0 <= Others().share() <= 1
