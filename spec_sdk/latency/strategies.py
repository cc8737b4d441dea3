"""Ways to use a number of devices (ALSpec, Figs. 1 and 4), from a latency table: the time of a token, and how many
requests are answered at once.

On N = m·n devices, m groups with tensor parallelism n each:

- **tensor parallel**: all N on one request.
- **data parallel**: every group answers a request of its own. Latency is one group's.
- **sequence parallel**: the groups divide the keys of one request, K/m each. Exchanging their partial attentions counts
  as the table's ``link``. The other weights are divided over all N devices where the table has their times, and else
  held by every group.
- **attention sink**: data parallel, and every prediction is taken unseen. Relaxed without a bound: the fastest that
  ALSpec could be.
- **ALSpec**: two groups as implemented (Scenario 3), or all groups pipelined (Scenarios 1 and 2;
  :mod:`spec_sdk.latency.schedules`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from spec_sdk.latency.estimate import Question, default_contexts, default_devices
from spec_sdk.latency.model import StepTimes, speculative_us, tensor_parallel_us
from spec_sdk.latency.schedules import pipelined_us, scenario
from spec_sdk.latency.table import DeviceTimes, LatencyTable

Kind = Literal["tensor parallel", "data parallel", "sequence parallel", "attention sink", "ALSpec", "ALSpec, pipelined"]


@dataclass(frozen=True)
class Strategy:
    """One way. ``groups``: m; ``degree``: n; ``streams``: requests at once; ``hit_rate``: of ALSpec.

    ``token_us``: a token's time at a context; None where the table does not cover it. ``scenario``: of ALSpec.
    """

    kind: Kind
    groups: int
    degree: int
    streams: int
    token_us: Callable[[int], float | None]
    hit_rate: float | None = None
    scenario: Callable[[int], int] | None = None

    @property
    def label(self) -> str:
        """``ALSpec @65%, 2 x TP 4``; short, for a table."""
        rate = "" if self.hit_rate is None else f" @{100 * self.hit_rate:g}%"
        name, comma, rest = self.kind.partition(",")
        return f"{name}{rate}{comma}{rest}, {f'{self.groups} x ' if self.groups > 1 else ''}TP {self.degree}"


@dataclass(frozen=True)
class Crossover:
    """``faster`` answers a token sooner than ``slower`` from ``context`` on, and not just before it."""

    devices: int
    faster: str
    slower: str
    context: int

    def as_json(self) -> dict[str, Any]:
        """Plain data for estimate.json."""
        return {"devices": self.devices, "faster": self.faster, "slower": self.slower, "from_context": self.context}


@dataclass(frozen=True)
class Comparison:
    """All ways to use ``devices``, at ``contexts``."""

    devices: int
    contexts: Sequence[int]
    strategies: Sequence[Strategy]
    crossovers: Sequence[Crossover] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """Plain data for estimate.json: a token's microseconds, and tokens per second of all requests together."""
        found = []
        for strategy in self.strategies:
            times = [strategy.token_us(context) for context in self.contexts]
            found.append(
                {
                    "strategy": strategy.kind,
                    "label": strategy.label,
                    "groups": strategy.groups,
                    "tensor_parallel": strategy.degree,
                    "requests_at_once": strategy.streams,
                    "hit_rate": strategy.hit_rate,
                    "scenario": None if strategy.scenario is None else [*map(strategy.scenario, self.contexts)],
                    "token_us": times,
                    "tokens_per_second": [None if us is None else strategy.streams * 1e6 / us for us in times],
                }
            )
        return {
            "devices": self.devices,
            "contexts": list(self.contexts),
            "strategies": found,
            "crossovers": [crossover.as_json() for crossover in self.crossovers],
        }


def compare(table: LatencyTable, question: Question) -> list[Comparison]:
    """Of every number of devices that is asked for, and that can be more than one group."""
    found = []
    for devices in question.devices or default_devices(table):
        strategies = strategies_of(table, question, devices)
        if any(strategy.groups > 1 for strategy in strategies):
            contexts = list(question.contexts or default_contexts(table, devices))
            found.append(Comparison(devices, contexts, strategies, crossovers(devices, strategies, contexts)))
    return found


def strategies_of(table: LatencyTable, question: Question, devices: int) -> list[Strategy]:
    """Those whose times the table has."""
    layers = question.layers or table.layers
    found = []
    whole = table.groups.get(devices)
    if whole is not None and (whole.has_stages or layers == table.layers):
        found.append(Strategy("tensor parallel", 1, devices, 1, _plain(table, whole, layers)))
    for degree, times in table.groups.items():
        if devices % degree == 0 and degree < devices and times.has_stages:
            found += _in_groups(table, question, times, whole, degree, devices // degree)
    return found


def _in_groups(
    table: LatencyTable,
    question: Question,
    times: DeviceTimes,
    whole: DeviceTimes | None,
    degree: int,
    groups: int,
) -> list[Strategy]:
    layers = question.layers or table.layers
    step = _step(table, times)

    def sink(context: int) -> float | None:
        at = step(context)
        return None if at is None else at.fixed + layers * (at.receiver + at.per_layer)

    def in_scenario(context: int) -> int:
        at = step(context)
        return 0 if at is None else scenario(at, groups)

    found = [
        Strategy("data parallel", groups, degree, groups, _plain(table, times, layers)),
        Strategy("sequence parallel", groups, degree, 1, _sequence_parallel(table, times, whole, layers, groups)),
        Strategy("attention sink", groups, degree, groups, sink),
    ]
    for rate in question.hit_rates:

        def implemented(context: int, rate: float = rate) -> float | None:
            at = step(context)
            return None if at is None else speculative_us(at, layers, rate, question.rounding)

        def pipelined(context: int, rate: float = rate) -> float | None:
            at = step(context)
            return None if at is None else pipelined_us(at, layers, rate, groups)

        if groups == 2:
            found.append(Strategy("ALSpec", groups, degree, 1, implemented, rate))
        found.append(Strategy("ALSpec, pipelined", groups, degree, 1, pipelined, rate, in_scenario))
    return found


def _step(table: LatencyTable, times: DeviceTimes) -> Callable[[int], StepTimes | None]:
    return lambda context: times.step(context, table.layers) if times.covers(context) else None


def _plain(table: LatencyTable, times: DeviceTimes, layers: int) -> Callable[[int], float | None]:
    def token_us(context: int) -> float | None:
        if not times.covers(context):
            return None
        if times.has_stages:
            return tensor_parallel_us(times.step(context, table.layers), layers)
        return None if times.token is None else times.token.at(context)

    return token_us


def _sequence_parallel(
    table: LatencyTable, times: DeviceTimes, whole: DeviceTimes | None, layers: int, groups: int
) -> Callable[[int], float | None]:
    """Attention of one group's n devices over its share of the keys, and the exchange; the rest as told above."""
    weights = whole if whole is not None and whole.has_stages else times

    def token_us(context: int) -> float | None:
        share = -(-context // groups)
        curve = times.flash_decode
        if curve is None or not curve.covers(share) or not weights.covers(context) or not times.covers(context):
            return None
        rest = weights.step(context, table.layers)
        return rest.fixed + layers * (rest.per_layer + curve.at(share) + times.link.at(context))

    return token_us


def crossovers(devices: int, strategies: Sequence[Strategy], contexts: Sequence[int]) -> list[Crossover]:
    """Where one of two ways becomes the faster, between the first and the last of ``contexts``, to the token; what two
    ways do twice within a 64th of the way from one of ``contexts`` to the next is not seen.

    ALSpec at each hit rate is held against every other way but attention sink, which is no rival: it checks nothing.
    """
    found = []
    for ours in (each for each in strategies if each.hit_rate is not None):
        for other in (each for each in strategies if each.hit_rate is None and each.kind != "attention sink"):
            for left, right in pairwise(_grid(sorted(contexts))):
                found += _between(devices, ours, other, left, right)
    return found


def _grid(contexts: Sequence[int]) -> list[int]:
    """Every one of ``contexts``, and up to 63 between two of them: two lines with corners may cross more than once."""
    points = {left + (right - left) * i // 64 for left, right in pairwise(contexts) for i in range(64)}
    return sorted(points | set(contexts))


def _between(devices: int, ours: Strategy, other: Strategy, left: int, right: int) -> list[Crossover]:
    signs = [_is_faster(ours, other, context) for context in (left, right)]
    if None in signs or signs[0] == signs[1]:
        return []
    low, high = left, right
    while high - low > 1:
        middle = (low + high) // 2
        if _is_faster(ours, other, middle) == signs[0]:
            low = middle
        else:
            high = middle
    faster, slower = (ours, other) if signs[1] else (other, ours)
    return [Crossover(devices, faster.label, slower.label, high)]


def _is_faster(ours: Strategy, other: Strategy, context: int) -> bool | None:
    mine, theirs = ours.token_us(context), other.token_us(context)
    return None if mine is None or theirs is None else mine < theirs
