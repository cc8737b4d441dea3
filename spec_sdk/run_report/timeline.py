"""When each process drafted, verified and recovered: a picture of some cycles, and all of them for a trace viewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from spec_sdk.metrics import STAGES
from spec_sdk.run_report.charts import SHOWN_STAGES
from spec_sdk.run_report.figure import NONE, Figure, Table, basis, legend_of_stages
from spec_sdk.run_report.groups import Group
from spec_sdk.run_report.records import Cycle, Run, Timeline
from spec_sdk.run_report.svg import drawing, line, rectangle, text, tick_text, ticks
from spec_sdk.tables import number, percent

WIDE = 960.0
LANE = 46.0
Slice = tuple[str, float, float]
"""A stage, its begin and its seconds."""


def slices(cycle: Cycle, not_before: float = 0.0) -> list[Slice]:
    """The stages of a cycle one after the other. An event is written when its cycle is done, so the last ends there.

    ``not_before``: when the cycle before was done; clocks are read apart, and stages do not overlap.
    """
    begin = max(cycle.end - sum(cycle.seconds.values()), not_before)
    found = []
    for stage, seconds in cycle.seconds.items():
        found.append((stage, begin, seconds))
        begin += seconds
    return found


def laid_out(cycles: Sequence[Cycle]) -> list[tuple[Cycle, list[Slice]]]:
    """Every cycle with its stages on the clock."""
    found, done = [], 0.0
    for cycle in cycles:
        stages = slices(cycle, done)
        done = max((begin + seconds for _, begin, seconds in stages), default=done)
        found.append((cycle, stages))
    return found


def timelines(group: Group, cycles: int) -> list[Figure]:
    """A figure for every run that kept its events: ``cycles`` of its first answer, of all its pipelines."""
    found = [_timeline(group, number, run, cycles) for number, run in group.runs.items() if run.timelines]
    return [figure for figure in found if figure is not None]


def _timeline(group: Group, run_number: int, run: Run, count: int) -> Figure | None:
    lanes = [lane for timelines in _by_candidate(run) for lane in _lanes(timelines, count)]
    if not lanes:
        return None
    rows = []
    for lane in lanes:
        spent = {stage: sum(s for _, stages in lane.laid for at, _, s in stages if at == stage) for stage in STAGES}
        tokens = [cycle.facts.get("tokens") for cycle, _ in lane.laid]
        leads = None not in tokens
        rows.append(
            [
                lane.name,
                str(len(lane.laid)) if leads else NONE,
                str(sum(map(int, filter(None, tokens)))) if leads else NONE,
                number(1000 * lane.seconds, 1),
                *(number(1000 * spent[stage], 1) for stage in STAGES),
                percent(max(0.0, 1 - sum(spent.values()) / lane.seconds) if lane.seconds else None),
            ]
        )
    shown = [s for s in group.series if s.number == run_number]
    title = f"Timeline of run {run_number}: {shown[0].label}"
    every = "Its prefill and all its cycles are" if run.kind == "bench" else "All cycles and prefills are"
    about = (
        f"Up to {count} cycles of the first answer, from its second cycle on: the first may compile. {every} in "
        f"{trace_name(run_number)}, for chrome://tracing or ui.perfetto.dev."
    )
    columns = ["process", "cycles", "tokens", "ms", *(f"{stage} ms" for stage in STAGES), "idle"]
    said = "; ".join(f"{row[0]}: {row[2]} tokens in {row[3]} ms" for row in rows)
    drawn = {stage for lane in lanes for _, stages in lane.laid for stage, _, _ in stages}
    table, legend = Table(columns, rows), legend_of_stages([stage for stage in SHOWN_STAGES if stage in drawn])
    told = basis(group, shown, against=False)
    return Figure(title, about, told, table, _drawn(title, said, lanes), legend, wide=True)


@dataclass(frozen=True)
class Lane:
    """A process in the picture: what it did from ``begin`` on, for ``seconds``."""

    name: str
    begin: float
    seconds: float
    laid: Sequence[tuple[Cycle, Sequence[Slice]]]


def _by_candidate(run: Run) -> list[list[Timeline]]:
    """The processes of each pipeline, the leader first."""
    names = dict.fromkeys(timeline.candidate for timeline in run.timelines)
    return [sorted((t for t in run.timelines if t.candidate == name), key=lambda t: t.process) for name in names]


def _lanes(timelines: Sequence[Timeline], count: int) -> list[Lane]:
    """The leader's window, and what the other processes did meanwhile."""
    window = _window(timelines[0], count)
    if not window:
        return []
    begin, end = window[0][1][0][1], max(begin + seconds for _, begin, seconds in window[-1][1])
    lanes = [Lane(_lane_name(timelines, timelines[0]), begin, end - begin, window)]
    for timeline in timelines[1:]:
        laid = [(call, stages) for call, stages in laid_out(timeline.cycles) if begin <= stages[0][1] < end]
        lanes.append(Lane(_lane_name(timelines, timeline), begin, end - begin, laid))
    return lanes


def _lane_name(timelines: Sequence[Timeline], timeline: Timeline) -> str:
    return f"{timeline.candidate}, process {timeline.process}" if len(timelines) > 1 else timeline.candidate


def _window(leader: Timeline, count: int) -> list[tuple[Cycle, list[Slice]]]:
    """The first answer's cycles, without prefill and the first of them where there are more."""
    first = leader.cycles[0].request if leader.cycles else None
    mine = [
        (cycle, stages)
        for cycle, stages in laid_out(leader.cycles)
        if cycle.request == first and "prefill" not in cycle.seconds
    ]
    return mine[1 : count + 1] or mine[:count]


def _drawn(title: str, said: str, lanes: Sequence[Lane]) -> Markup:
    scale = ticks(1000 * max(lane.seconds for lane in lanes), 10)
    per_second = (WIDE - 30) * 1000 / scale[-1]
    height = LANE * len(lanes)
    marks = [line(tick / 1000 * per_second, 0, tick / 1000 * per_second, height, "grid") for tick in scale]
    for i, lane in enumerate(lanes):
        marks.append(text(0, i * LANE + 14, lane.name))
        for cycle, stages in lane.laid:
            for stage, begin, seconds in stages:
                tip = f"{lane.name}{_in_words(cycle.facts)}: {stage} {1000 * seconds:.2f} ms"
                x = (begin - lane.begin) * per_second
                marks.append(rectangle(x, i * LANE + 20, seconds * per_second, 18, f"bar {stage}", tip))
    for tick in scale:
        x = tick / 1000 * per_second
        marks.append(text(x, height + 14, tick_text(tick), "tick", "middle" if tick else "start"))
    marks.append(text(WIDE / 2, height + 30, "ms since the first cycle shown", "label", "middle"))
    return drawing(title, said, height + 36, marks, WIDE)


def _in_words(facts: Mapping[str, Any]) -> str:
    names = {"step": "cycle", "call": "call", "drafted": "drafted", "accepted": "accepted", "tokens": "tokens"}
    told = [f"{name} {facts[key]}" for key, name in names.items() if facts.get(key) is not None]
    return f", {', '.join(told)}" if told else ""


def trace_name(run_number: int) -> str:
    """The file of a run's trace."""
    return f"trace-{run_number}.json"


def trace_of(run: Run) -> dict[str, Any] | None:
    """The run in the Trace Event Format that chrome://tracing and Perfetto read; None if it kept no events.

    A process of the trace is a process of a pipeline; times are microseconds since the first event.
    """
    if not any(timeline.cycles for timeline in run.timelines):
        return None
    placed = [(timeline, laid_out(timeline.cycles)) for timeline in run.timelines]
    zero = min(begin for _, laid in placed for _, stages in laid for _, begin, _ in stages)
    events: list[dict[str, Any]] = []
    for pid, (timeline, laid) in enumerate(placed, start=1):
        name = f"{timeline.candidate}: process {timeline.process}"
        events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 1, "args": {"name": name}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 1, "args": {"sort_index": pid}})
        for cycle, stages in laid:
            known = {"request": cycle.request, **cycle.facts}
            args = {key: value for key, value in known.items() if value is not None}
            for stage, begin, seconds in stages:
                start, end = (round(1e6 * (at - zero), 3) for at in (begin, begin + seconds))
                at = {"ts": start, "dur": round(end - start, 3)}
                events.append({"name": stage, "cat": "spec_sdk", "ph": "X", "pid": pid, "tid": 1, **at, "args": args})
    facts = {"command": run.command, "target": run.target, "dtype": run.dtype, "machine": dict(run.machine)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
