"""Rivals that take turns, by a clock that the calls themselves move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.bench.timing import LEAST_ROUNDS, median_rounds, median_seconds, own_clock, timer, times_of
from spec_sdk.bench.turns import rotated


class World:
    """Calls that take as long as they are told to, and who was called when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def takes() -> None:
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return takes

    def clock(self) -> float:
        return self.now


def test_every_turn_begins_with_the_next_rival() -> None:
    assert [rotated("abc", turn) for turn in (0, 1, 3)] == [["a", "b", "c"], ["b", "c", "a"], ["a", "b", "c"]]
    assert rotated([], 5) == []


def test_rounds_are_timed_turn_by_turn_and_warming_up_is_not() -> None:
    world = World()
    # what is slow at first has compiled something
    calls = {"a": world.call("a", 50.0, 1.0), "b": world.call("b", 2.0)}
    taken = times_of(calls, seconds=0.0, clock=world.clock)
    assert taken == {"a": [1.0] * LEAST_ROUNDS, "b": [2.0] * LEAST_ROUNDS}
    assert "".join(world.called[-2 * LEAST_ROUNDS :]) == "abbaabbaab"


def test_the_median_counts_and_rounds_end() -> None:
    world = World()
    calls = {"a": world.call("a", 9.0, *([9.0] * 5), 1.0, 2.0, 30.0, 2.0, 3.0, 2.0)}
    assert median_seconds(calls, seconds=5.0, most_rounds=6, clock=world.clock) == {"a": 2.0}
    assert len(world.called) == 1 + 5 + 6


def test_rounds_of_calls_in_a_row_count_by_their_mean_after_one_untimed() -> None:
    world = World()
    calls = {"a": world.call("a", 50.0, 1.0, 3.0, 50.0, 5.0), "b": world.call("b", 2.0)}
    assert median_rounds(calls, 2, 2, timer(world.clock)) == {"a": (2.0 + 5.0) / 2, "b": 2.0}
    assert "".join(world.called) == "aaabbbbbbaaa"


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_is_timed_by_its_own_processor_time(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert own_clock(torch.device("cpu")).__name__ == ("thread_time" if threads == 1 else "perf_counter")
    finally:
        torch.set_num_threads(before)
