"""The tables of a benchmark, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from spec_sdk.bench.conversations import task_name
from spec_sdk.bench.figures import (
    ALL,
    Figures,
    Losslessness,
    figures_of,
    guarantee_of,
    is_lossless,
    losslessness_of,
    tasks_of,
)
from spec_sdk.bench.intervals import Interval
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import VANILLA, Setting
from spec_sdk.counted import counted
from spec_sdk.metrics import STAGES
from spec_sdk.tables import number, percent, print_facts, print_table

DEPTHS = 8
"""Depths of drafts that are shown; summary.json has all."""


def show_run(run: BenchRun, file: TextIO) -> None:
    """What ran, and every table that there is something for."""
    print_facts(facts_of(run), file)
    print(file=file)
    for setting in run.settings:
        found = [figures_of(run, name, setting) for name in run.names]
        figures = [each for each in found if each is not None]
        if figures:
            _show_setting(run, setting, figures, file)
    _show_losslessness(run, file)
    show_failures(run, file)


def facts_of(run: BenchRun) -> dict[str, str]:
    """What all figures were measured with."""
    about, machine = run.head.data, run.head.data["machine"]
    prompts, rounds = about["prompts"], counted(about["rounds"], "round")
    return {
        "target": f"{about['target']}, {about['dtype']}, weights {about['weights']}",
        "machine": f"{machine['device']}, {counted(machine['cores'], 'core')}, {counted(machine['threads'], 'thread')}",
        "versions": f"spec-sdk {about['spec_sdk']}, torch {machine['torch']}, Python {machine['python']}",
        "prompts": f"{prompts['count']} of {prompts['file']}, {about['new_tokens']} new tokens, {rounds}",
    }


def interval_cell(interval: Interval | None) -> str:
    """``1.32 (1.20–1.45)``: the median and its confidence interval."""
    if interval is None:
        return "–"
    if interval.count == 1:
        return number(interval.median)
    return f"{interval.median:.2f} ({interval.low:.2f}–{interval.high:.2f})"


def _show_setting(run: BenchRun, setting: Setting, figures: Sequence[Figures], file: TextIO) -> None:
    under = f"temperature {setting.temperature:g}, batch size {setting.batch_size}"
    print_table(
        f"{under}: speed-up over plain decoding, prefill included",
        ["", "speed-up", "without prefill", "tokens/s", "MAT", "accepted"],
        [
            [
                each.candidate,
                interval_cell(each.speedup_interval),
                number(each.decode_speedup.median if each.decode_speedup else None),
                number(each.tokens_per_second.median if each.tokens_per_second else None, 1),
                number(each.mean_accepted_tokens),
                percent(each.acceptance_rate),
            ]
            for each in figures
        ],
        file,
    )
    tasks = tasks_of(run) if setting.batch_size == 1 else []
    if len(tasks) > 1:
        for each in figures:
            if each.candidate == VANILLA:
                continue
            _show_tasks(run, each, under, tasks, file)
    _show_depths(under, figures, file)
    _show_times(under, figures, file)


def _show_tasks(run: BenchRun, whole: Figures, under: str, tasks: Sequence[str], file: TextIO) -> None:
    found = [figures_of(run, whole.candidate, whole.setting, task) for task in tasks]
    rows = [
        [
            "all" if each.task == ALL else task_name(each.task),
            interval_cell(each.speedup_interval),
            number(each.tokens_per_second.median if each.tokens_per_second else None, 1),
            number(each.mean_accepted_tokens),
            percent(each.acceptance_rate),
            str(each.prompts),
        ]
        for each in [*(each for each in found if each is not None), whole]
    ]
    columns = ["task", "speed-up", "tokens/s", "MAT", "accepted", "prompts"]
    print_table(f"{whole.candidate}, {under}", columns, rows, file)


def _show_depths(under: str, figures: Sequence[Figures], file: TextIO) -> None:
    drafting = [each for each in figures if each.acceptance_by_depth]
    deepest = min(DEPTHS, max((len(each.acceptance_by_depth) for each in drafting), default=0))
    if not deepest:
        return
    rows = [
        [each.candidate, *(number(rate) for rate in [*each.acceptance_by_depth, *[None] * DEPTHS][:deepest])]
        for each in drafting
    ]
    print_table(
        f"{under}: share of drafts that were accepted so deep, of those that were as deep",
        ["depth", *map(str, range(1, deepest + 1))],
        rows,
        file,
    )


def _show_times(under: str, figures: Sequence[Figures], file: TextIO) -> None:
    rows = [
        [
            each.candidate,
            *(_ms((each.stage_s_per_cycle or {}).get(stage)) for stage in STAGES),
            number(each.nodes_per_cycle, 1),
            _ms(each.first_token_s.median if each.first_token_s else None, 0),
            _ms(each.seconds_per_token.median if each.seconds_per_token else None),
            number(None if each.resident_bytes is None else each.resident_bytes / 2**20, 0),
        ]
        for each in figures
    ]
    print_table(
        f"{under}: ms per cycle by stage, nodes per tree; ms to the first token and per further one; peak memory",
        ["", *STAGES, "nodes", "first", "further", "MiB"],
        rows,
        file,
    )


def _show_losslessness(run: BenchRun, file: TextIO) -> None:
    found = [losslessness_of(run, name) for name in run.names]
    rows = [
        [
            each.candidate,
            f"{each.equal} of {each.compared}",
            str(each.ties),
            _others(run, each),
            f"{number(each.mean_common_tokens, 1)} of {number(each.mean_tokens, 1)}",
            guarantee_of(run, each.candidate) or "none",
        ]
        for each in found
        if each.compared
    ]
    if rows:
        columns = ["", "equal", "near-ties", "others", "tokens in common", "guarantee"]
        print_table("greedy answers beside plain decoding's", columns, rows, file)


def _others(run: BenchRun, found: Losslessness) -> str:
    fault = found.faults and is_lossless(run, found.candidate)
    return f"FAULT {found.faults}" if fault else str(found.faults)


def show_failures(run: BenchRun, file: TextIO) -> None:
    """What was not answered, and why."""
    if not run.failures:
        return
    counted: dict[tuple[str, str, str], int] = {}
    for failure in run.failures:
        key = (failure.candidate, failure.reason.replace("_", " "), failure.error)
        counted[key] = counted.get(key, 0) + 1
    rows = [[candidate, str(times), f"{reason}: {error}"] for (candidate, reason, error), times in counted.items()]
    print_table("not answered", ["", "times", "why"], rows, file, numbers=False)


def _ms(seconds: float | None, digits: int = 1) -> str:
    return number(None if seconds is None else 1000 * seconds, digits)
