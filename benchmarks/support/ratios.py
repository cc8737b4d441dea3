"""How many times as fast one thing is as another, how far that is noise, and whether it has moved since it was kept.

Logarithms of ratios are averaged: twice as fast and half as fast are equally far from equal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

BLOCKS = 6
"""Rounds that follow one another meet the same state of the machine: their noise is that between so many blocks."""
SIGMAS = 3.0
"""A change of so many standard errors is more than noise."""
LEAST_CHANGE = 0.03
"""A smaller change is never called one: where a program's code lies in memory matters as much."""

Verdict = Literal["faster", "slower", "within noise", "new", "gone"]


@dataclass(frozen=True)
class Ratio:
    """``value``: how many times as fast. ``noise``: the standard error of its logarithm, from ``samples`` ratios."""

    value: float
    noise: float
    samples: int

    @staticmethod
    def of(groups: Iterable[Sequence[float]]) -> Ratio:
        """The geometric mean over groups of repeated ratios.

        A group is what was measured again and again, such as one prompt: its repeats differ by noise alone, and groups
        may differ from one another. Raises ValueError where no group has a repeat, or a ratio is not above 0.
        """
        every = [list(group) for group in groups]
        if any(not (0 < ratio < math.inf) for group in every for ratio in group):
            raise ValueError(f"ratios must be above 0 and finite: {every}")
        logs = [[math.log(ratio) for ratio in group] for group in every if group]
        repeats = sum(len(group) - 1 for group in logs)
        if repeats < 1:
            raise ValueError("noise is known from repeats: two ratios of one group at least")
        means = [statistics.fmean(group) for group in logs]
        variance = sum((x - mean) ** 2 for group, mean in zip(logs, means, strict=True) for x in group) / repeats
        error = math.sqrt(sum(variance / len(group) for group in logs)) / len(logs)
        return Ratio(math.exp(statistics.fmean(means)), error, sum(map(len, logs)))

    @staticmethod
    def of_times(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
        """From seconds of the same rounds: the ratio of medians, in each of BLOCKS blocks of rounds.

        Raises ValueError for fewer rounds than two blocks.
        """
        pairs = list(zip(slower, faster, strict=True))
        size = max(1, len(pairs) // BLOCKS)
        blocks = [pairs[i : i + size] for i in range(0, len(pairs) - size + 1, size)]
        medians = [[statistics.median(side) for side in zip(*block, strict=True)] for block in blocks]
        return Ratio.of([[slow / fast for slow, fast in medians]])


@dataclass(frozen=True)
class KeptRatio:
    """A ratio that was kept, the commit that it was measured of, and when (ISO 8601)."""

    ratio: Ratio
    commit: str
    measured: str


@dataclass(frozen=True)
class Compared:
    """``name`` now and as it was kept. ``change``: now over kept, less 1; ``noise``: what of it may be noise."""

    name: str
    verdict: Verdict
    now: Ratio | None = None
    kept: Ratio | None = None
    change: float | None = None
    noise: float | None = None


def compare(now: Mapping[str, Ratio], kept: Mapping[str, Sequence[KeptRatio]]) -> list[Compared]:
    """Every ratio of ``now`` beside those kept of the commit that was kept last, then what is kept and not measured.

    Of several kept runs of that commit the mean counts, and they tell how far runs differ from one another.
    """
    found = []
    for name, ratio in now.items():
        if not kept.get(name):
            found.append(Compared(name, "new", ratio, noise=_beyond(ratio.noise)))
            continue
        before, spread = last_kept(kept[name])
        runs = len(_of_last_commit(kept[name]))
        within = ratio.noise**2 + before.noise**2
        between = spread**2 * (1 + 1 / runs)
        noise = _beyond(math.sqrt(max(within, between)))
        change = ratio.value / before.value - 1
        moved: Verdict = "faster" if change > 0 else "slower"
        # as a factor: half as fast is as far away as twice as fast
        beyond = max(1 + change, 1 / (1 + change)) > 1 + noise
        found.append(Compared(name, moved if beyond else "within noise", ratio, before, change, noise))
    return found + [Compared(name, "gone", kept=last_kept(runs)[0]) for name, runs in kept.items() if name not in now]


def last_kept(runs: Sequence[KeptRatio]) -> tuple[Ratio, float]:
    """The mean of the runs of the last commit, and the standard deviation of a run's logarithm (0 for a single one)."""
    last = [run.ratio for run in _of_last_commit(runs)]
    logs = [math.log(ratio.value) for ratio in last]
    error = math.sqrt(sum(ratio.noise**2 for ratio in last)) / len(last)
    spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
    return Ratio(math.exp(statistics.fmean(logs)), error, sum(ratio.samples for ratio in last)), spread


def _beyond(error: float) -> float:
    """The change that a standard error of the logarithm leaves to noise."""
    return max(LEAST_CHANGE, math.expm1(SIGMAS * error))


def _of_last_commit(runs: Sequence[KeptRatio]) -> list[KeptRatio]:
    return [run for run in runs if run.commit == runs[-1].commit]
