"""Figures of how fast candidates are: at a glance, overall and by task."""

from __future__ import annotations

from spec_sdk.bench.spreads import spread_of
from spec_sdk.bench.totals import acceptance_rate, decode_tokens_per_second, mean_accepted_tokens, tokens_per_second
from spec_sdk.counted import counted
from spec_sdk.run_report import charts
from spec_sdk.run_report.figure import NONE, Figure, Table, basis, legend_of
from spec_sdk.run_report.groups import Group, Series
from spec_sdk.run_report.speed import (
    Comparison,
    compared,
    divergence,
)
from spec_sdk.tables import number, percent


def at_a_glance(group: Group, temperature: float) -> list[Figure]:
    """One row for every candidate: speed, acceptance, memory and how many answers differ."""
    rows = []
    shown = [series for series in group.series if series.answers(temperature, 1)]
    for series in shown:
        answers = series.answers(temperature, 1)
        comparison = compared(group, series, temperature)
        first = spread_of(answer.first_token_s for answer in answers)
        memory = max((answer.resident_bytes or 0 for answer in answers), default=0)
        rows.append(
            [
                series.label,
                series.candidate.guarantee or NONE,
                number(tokens_per_second(answers), 1),
                times(comparison.speedup if comparison else None) if not group.is_baseline(series) else "1 (baseline)",
                number(decode_tokens_per_second(answers), 1),
                number(mean_accepted_tokens(answers)),
                percent(acceptance_rate(answers)),
                number(None if first is None else 1000 * first.median, 0),
                str(memory >> 20) if memory else NONE,
                _differing(series, comparison, temperature),
                str(len(answers)),
            ]
        )
    columns = [
        "candidate",
        "guarantee",
        "tokens/s",
        "speed-up",
        "decode tokens/s",
        "MAT",
        "acceptance rate",
        "first token ms",
        "peak MiB",
        "differ",
        "answers",
    ]
    about = (
        "tokens/s and the speed-up count the whole answer, prefill included, over all answers together; the speed-up "
        "over those that the baseline gave too. Decode: without prefill, or where that is not told without what came "
        "first. MAT: new tokens per target pass. First token: the median. Differ: "
        "greedy answers that are not the baseline's token by token; ties are those that rounding may account for."
    )
    return [Figure("At a glance", about, basis(group, shown), Table(columns, rows))] if rows else []


def _differing(series: Series, comparison: Comparison | None, temperature: float) -> str:
    if temperature or comparison is None:
        return NONE
    own = (check for check in series.run.checks if check.candidate == series.candidate.name)
    checks = [check for check in own if check.batch_size == 1]
    if checks:
        unequal = [check for check in checks if not check.equal]
        ties = sum(check.tie is True for check in unequal)
        return f"{len(unequal)} of {len(checks)}" + (f" ({counted(ties, 'tie')})" if ties else "")
    found = divergence(comparison.pairs)
    return NONE if found is None else f"{found[1]} of {found[2]}"


def comparisons(group: Group, temperature: float) -> list[tuple[int, Comparison]]:
    """Every candidate that can be compared, with its place in the group, which its colour follows."""
    found = ((i, compared(group, series, temperature)) for i, series in enumerate(group.series))
    return [(i, comparison) for i, comparison in found if comparison is not None]


def overall(group: Group, temperature: float) -> list[Figure]:
    """The speed-up of every candidate, the fastest first."""
    found = [(i, c, c.speedup) for i, c in comparisons(group, temperature)]
    ranked = sorted(((i, c, s) for i, c, s in found if s is not None), key=lambda row: -row[2])
    bars, rows = [], []
    for i, comparison, speedup in ranked:
        each, label = comparison.each, comparison.series.label
        low, high = (each[0], each[-1]) if each else (speedup, speedup)
        over = counted(len(comparison.pairs), "answer")
        told = f"{label}: {times(speedup)} over {over}, each {times(low)} to {times(high)}"
        bars.append(charts.Bar(label, speedup, times(speedup), i, low, high, told))
        rows.append(
            [label, times(speedup), times(low), times(high), str(len(comparison.pairs)), comparison.baseline.label]
        )
    if not bars:
        return []
    about = (
        "Tokens per second by the baseline's of the same questions, prefill included. Thin line: the slowest and the "
        "fastest single answer. The upright line is the baseline."
    )
    shown = [comparison.series for _, comparison, _ in ranked]
    title = "Speed-up"
    return [
        Figure(
            title,
            about,
            basis(group, shown),
            Table(["candidate", "speed-up", "slowest answer", "fastest answer", "answers", "baseline"], rows),
            charts.bars(title, f"{rows[0][0]} is the fastest, {rows[0][1]}", bars, reference=1.0),
        )
    ]


def by_task(group: Group, temperature: float) -> list[Figure]:
    """The speed-up of every candidate on every task; nothing where the prompts have no tasks."""
    found = comparisons(group, temperature)
    tasks = sorted({ours.task for _, comparison in found for ours, _ in comparison.pairs})
    if not found or len(tasks) < 2:
        return []
    cells: dict[tuple[int, str], float] = {}
    for i, comparison in found:
        for task in tasks:
            speedup = comparison.of_task(task).speedup
            if speedup is not None:
                cells[i, task] = speedup
    labels = {i: comparison.series.label for i, comparison in found}
    rows = [
        (
            task,
            [
                (i, cells[i, task], f"{task}, {labels[i]}: {times(cells[i, task])}")
                for i in labels
                if (i, task) in cells
            ],
        )
        for task in tasks
    ]
    table = [[task, *(times(cells.get((i, task))) for i in labels)] for task in tasks]
    title = "Speed-up by task"
    best = max(cells, key=lambda key: cells[key])
    return [
        Figure(
            title,
            "As above, over the answers of one task. The upright line is the baseline.",
            basis(group, [comparison.series for _, comparison in found]),
            Table(["task", *labels.values()], table),
            charts.dots(title, f"The largest is {labels[best[0]]} on {best[1]}, {times(cells[best])}", rows, 1.0),
            legend_of([*labels.items()]),
        )
    ]


def times(value: float | None) -> str:
    """A ratio for people."""
    return NONE if value is None else f"{value:.2f}×"
