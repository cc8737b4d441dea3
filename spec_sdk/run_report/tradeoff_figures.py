"""Figures of what speed is had for: throughput against batch, and speed against divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_sdk.bench.totals import tokens_per_second
from spec_sdk.counted import counted
from spec_sdk.metrics import ratio
from spec_sdk.run_report import charts
from spec_sdk.run_report.figure import NONE, Figure, Table, basis, legend_of
from spec_sdk.run_report.groups import Group, Series
from spec_sdk.run_report.speed import Comparison, divergence
from spec_sdk.run_report.speed_figures import comparisons, times
from spec_sdk.tables import number, percent

RELAXED = "relaxed"


def by_batch(group: Group, temperature: float) -> list[Figure]:
    """Throughput against batch; nothing where only single requests were served."""
    curves, rows, shown = [], [], []
    for i, series in enumerate(group.series):
        speeds = batch_speeds(series, temperature)
        if len(speeds) < 2:
            continue
        shown.append(series)
        baseline = group.baseline_of(series)
        base = batch_speeds(baseline, temperature) if baseline is not None else {}
        points = []
        for size, speed in sorted(speeds.items()):
            gain = None if group.is_baseline(series) else ratio(speed, base.get(size, 0.0))
            points.append(charts.Point(size, speed, f"{series.label}, batch {size}: {speed:.1f} tokens/s"))
            rows.append([series.label, str(size), number(speed, 1), times(gain)])
        curves.append(charts.Curve(series.label, i, points))
    if not curves:
        return []
    title = "Throughput by batch"
    about = "New tokens of all requests served together, by the seconds until the last of them had its last token."
    top = max((point for curve in curves for point in curve.points), key=lambda point: point.y)
    return [
        Figure(
            title,
            about,
            basis(group, shown),
            Table(["candidate", "batch", "tokens/s", "speed-up at this batch"], rows),
            charts.lines(title, f"The most is {top.tip}", curves, "requests at a time", "tokens/s", doubling=True),
            legend_of([(curve.series, curve.label) for curve in curves]),
        )
    ]


def batch_speeds(series: Series, temperature: float) -> dict[int, float]:
    """Tokens per second by batch size. Single requests have no record of a batch: their answers count."""
    speeds: dict[int, float] = {}
    mine = [
        batch
        for batch in series.run.batches
        if batch.candidate == series.candidate.name and batch.temperature == temperature
    ]
    for size in sorted({batch.batch_size for batch in mine}):
        same = [batch for batch in mine if batch.batch_size == size]
        speed = tokens_per_second(same)
        if speed is not None:
            speeds[size] = speed
    # requests that were served together were asked the first turns
    single = tokens_per_second([answer for answer in series.answers(temperature, 1) if answer.turn == 0])
    return {1: single, **speeds} if single is not None else speeds


def against_divergence(group: Group, temperature: float) -> list[Figure]:
    """Speed against how far greedy answers leave the baseline's; nothing without a relaxed pipeline."""
    found: list[tuple[int, Comparison, float, Any]] = []
    for i, comparison in comparisons(group, temperature):
        speedup, far = comparison.speedup, divergence(comparison.pairs)
        if speedup is not None and far is not None:
            found.append((i, comparison, speedup, far))
    relaxed = [row for row in found if row[1].series.candidate.guarantee == RELAXED]
    if temperature or not relaxed:
        return []
    # the baseline is one of those that can be chosen
    front = pareto([(0.0, 1.0), *((100 * far[0], speedup) for _, _, speedup, far in found)])
    place = next(i for i, series in enumerate(group.series) if group.is_baseline(series))
    curves = [charts.Curve(group.baseline, place, [charts.Point(0.0, 1.0, group.baseline)], hollow=True)]
    rows = [[group.baseline, NONE, times(1.0), percent(0.0), NONE, "yes" if (0.0, 1.0) in front else "no"]]
    for i, comparison, speedup, (share, differ, count) in sorted(found, key=lambda row: row[3][0]):
        series = comparison.series
        tip = f"{series.label}: {times(speedup)}, {percent(share)} diverging"
        point = charts.Point(100 * share, speedup, tip)
        curves.append(charts.Curve(series.label, i, [point], hollow=series.candidate.guarantee != RELAXED))
        on_front = "yes" if (100 * share, speedup) in front else "no"
        rows.append(
            [
                series.label,
                series.candidate.guarantee or NONE,
                times(speedup),
                percent(share),
                f"{differ} of {count}",
                on_front,
            ]
        )
    title = "Speed against divergence"
    about = (
        "Divergence: the mean share of a greedy answer that comes after the last token which it has in common with the "
        "baseline's. Filled marks are relaxed pipelines; the others are lossless, and diverge only where rounding "
        "decides between two tokens. The baseline is at 1×. The thin line is the Pareto front: nothing is both faster "
        "and nearer."
    )
    columns = ["candidate", "guarantee", "speed-up", "divergence", "answers that differ", "on the front"]
    return [
        Figure(
            title,
            about,
            basis(group, [row[1].series for row in found]),
            Table(columns, rows),
            charts.lines(
                title,
                f"{counted(len(relaxed), 'relaxed pipeline')}, {counted(len(front), 'candidate')} on the front",
                curves,
                "divergence in %",
                "speed-up",
                joined=False,
                front=front,
                reference=1.0,
            ),
            legend_of([(curve.series, curve.label) for curve in curves]),
        )
    ]


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other one surpasses: none has less of the first and as much of the second, or the reverse."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front
