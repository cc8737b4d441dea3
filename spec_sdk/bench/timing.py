"""Times rivals in one process, turn by turn, so that all of them meet the same state of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from spec_sdk.bench.turns import rotated

LEAST_ROUNDS = 5

Times = dict[str, float]
T = TypeVar("T")
Timer = Callable[[Callable[[], object], int], float]
"""(call, repeats) → seconds of one call, over so many in a row."""


def own_clock(device: torch.device) -> Callable[[], float]:
    """A clock for calls that share their machine with other programs.

    On a CPU with one torch thread: the processor time of this thread, which does not count while another program has
    the core. Else the wall clock, on a GPU after waiting for it.
    """
    if device.type == "cuda":

        def waiting() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return waiting
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def median_seconds(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    most_rounds: int = 400,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Median seconds of each call over as many rounds as fit into ``seconds``; every round starts with another one."""
    return {name: statistics.median(taken) for name, taken in times_of(calls, seconds, most_rounds, clock).items()}


def times_of(
    calls: Mapping[T, Callable[[], object]],
    seconds: float,
    most_rounds: int = 400,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[T, list[float]]:
    """The seconds of every call of every round, LEAST_ROUNDS at least. What comes first warms up and does not count."""
    taken: dict[T, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for call in calls.values():
        call()
    once = time.perf_counter() - began
    if once < seconds / 20:
        for call in [*calls.values()] * 5:
            call()
    rounds = 0
    while rounds < LEAST_ROUNDS or (rounds < most_rounds and time.perf_counter() - began < seconds):
        for name in rotated(calls, rounds):
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
        rounds += 1
    return taken


def timer(clock: Callable[[], float]) -> Timer:
    """The mean seconds of calls in a row, by a clock of the host."""

    def seconds_of(call: Callable[[], object], repeats: int) -> float:
        began = clock()
        for _ in range(repeats):
            call()
        return (clock() - began) / repeats

    return seconds_of


def median_rounds(calls: Mapping[str, Callable[[], object]], rounds: int, repeats: int, seconds_of: Timer) -> Times:
    """Median seconds of each call over so many rounds of ``repeats`` in a row; every round starts with another one.

    In each round every call is made once untimed, so that it finds in the caches what it leaves there itself.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in rotated(calls, turn):
            calls[name]()
            taken[name].append(seconds_of(calls[name], repeats))
    return {name: statistics.median(each) for name, each in taken.items()}
