"""The page and the Markdown: groups of runs with their figures, put into the templates beside this file."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from spec_sdk.bench.records import CandidateRecord
from spec_sdk.counted import counted
from spec_sdk.run_report.figure import Figure, Table, machine_in_words, numbered
from spec_sdk.run_report.groups import Group
from spec_sdk.run_report.inside_figures import acceptance_by_depth, hit_rates, pass_costs, stage_times
from spec_sdk.run_report.speed_figures import at_a_glance, by_task, overall
from spec_sdk.run_report.timeline import timelines
from spec_sdk.run_report.tradeoff_figures import against_divergence, by_batch
from spec_sdk.version import __version__
from spec_sdk.what_ran import in_words

FIGURES: Sequence[Callable[[Group, float], list[Figure]]] = (
    at_a_glance,
    overall,
    by_task,
    stage_times,
    acceptance_by_depth,
    pass_costs,
    hit_rates,
    by_batch,
    against_divergence,
)


@dataclass(frozen=True)
class Section:
    """The figures of one temperature."""

    title: str
    figures: Sequence[Figure]


@dataclass(frozen=True)
class GroupPart:
    """A group on the page. ``remarks``: what must be known before its numbers are read."""

    title: str
    facts: Mapping[str, str]
    runs: Table
    commands: Sequence[tuple[str, str]]
    candidates: Table
    remarks: Sequence[str]
    sections: Sequence[Section]


def parts_of(groups: Sequence[Group], cycles: int) -> list[GroupPart]:
    """What is shown of every group. ``cycles``: of the timelines."""
    return [_part(group, cycles) for group in groups]


def html_page(title: str, parts: Sequence[GroupPart], failed: Sequence[str]) -> str:
    """The whole page: nothing of it is loaded from elsewhere, and no script but the page's own can run in it."""
    style, script = (_resource(name) for name in ("style.css", "sort.js"))
    values = {
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
    }
    return _render("report.html.jinja", title, parts, failed, values)


def markdown_page(title: str, parts: Sequence[GroupPart], failed: Sequence[str]) -> str:
    """The same without pictures, to paste into an issue."""
    return _render("report.md.jinja", title, parts, failed, {})


def _render(name: str, title: str, parts: Sequence[GroupPart], failed: Sequence[str], values: Mapping[str, Any]) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    template = _environment().get_template(name)
    return template.render(title=title, parts=parts, failed=failed, made=made, version=__version__, **values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spec_sdk.run_report", "templates"),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = markdown_cell
    environment.filters["line"] = markdown_line
    return environment


def markdown_line(words: str) -> str:
    """Text that means nothing in Markdown or HTML, in one line."""
    plain = " ".join(words.split())
    for character in "\\`*_[]<>#|~":
        plain = plain.replace(character, f"\\{character}")
    return plain.replace("&", "&amp;")


def markdown_cell(words: str) -> str:
    """A cell of a table."""
    return markdown_line(words) or " "


def _resource(name: str) -> str:
    return (files("spec_sdk.run_report") / "templates" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """As a content security policy names what it lets through."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _part(group: Group, cycles: int) -> GroupPart:
    run = group.any_run
    sections = [
        Section(
            "Greedy (temperature 0)" if not temperature else f"Sampled, temperature {temperature:g}",
            [figure for make in FIGURES for figure in make(group, temperature)],
        )
        for temperature in group.temperatures
    ]
    over_time = timelines(group, cycles)
    return GroupPart(
        title=f"{run.target}, {run.dtype}, on {machine_in_words(group)}: {numbered(group.runs)} of task={run.kind}",
        facts={
            "target": run.target,
            "dtype": run.dtype,
            "weights": run.weights,
            **{name.replace("_", " "): str(value) for name, value in run.machine.items()},
        },
        runs=_runs(group),
        commands=[(f"Run {number}", each.command) for number, each in group.runs.items()],
        candidates=_candidates(group),
        remarks=_remarks(group),
        sections=[*(s for s in sections if s.figures), *[Section("Over time", over_time)] * bool(over_time)],
    )


def _runs(group: Group) -> Table:
    rows = []
    for number, run in group.runs.items():
        workload = run.workload
        rows.append(
            [
                f"run {number}",
                str(run.path),
                run.kind,
                (run.started or "–")[:19].replace("T", " "),
                f"{workload.get('prompts')} "
                f"({counted(workload['count'], 'prompt')}, {counted(workload['new tokens'], 'new token')})",
                "partial" if run.partial or run.failures else "whole",
            ]
        )
    return Table(["run", "directory", "task", "started", "prompts", "state"], rows)


def _candidates(group: Group) -> Table:
    rows = [
        [
            series.label,
            f"run {series.number}",
            series.candidate.guarantee or "–",
            ", ".join(series.candidate.overrides) or "–",
            _plugins(series.candidate),
        ]
        for series in group.series
    ]
    return Table(["candidate", "of", "guarantee", "changed", "plugins"], rows)


def _plugins(candidate: CandidateRecord) -> str:
    told = [
        f"{kind.replace('_', ' ')} {in_words(plugin)}"
        for kind, plugin in (candidate.plugins or {}).items()
        if "name" in plugin
    ]
    if candidate.draft:
        told.append(f"draft model {candidate.draft}")
    if candidate.kind != "pipeline":
        told += [f"{key} {value}" for key, value in candidate.facts.items() if isinstance(value, str | int | float)]
    return "; ".join(told) or "–"


def _remarks(group: Group) -> list[str]:
    told = []
    for number, run in group.runs.items():
        told += [f"Run {number} is partial: {reason}." for reason in run.partial]
        told += [f"Run {number}, failed: {failure}" for failure in run.failures]
    for series in group.series:
        if not group.is_baseline(series) and group.baseline_of(series) is None and series.answers():
            told.append(
                f"{series.label} has no speed-up: no run here has answers of {group.baseline} to the same questions."
            )
    return told
