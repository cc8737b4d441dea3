"""``task=report``: one page of figures and tables from the directories of any runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import json_text, write_atomically
from spec_sdk.run_output import check_writable
from spec_sdk.settings import Settings

PAGE, MARKDOWN = "report.html", "report.md"


@dataclass
class ReportConfig:
    """Options of ``task=report``."""

    runs: Any = option(
        None,
        "directories of runs, one or a list: of task=bench, of task=generate, or of a sweep, which is all its jobs",
        means={None: "none: it must be given"},
    )
    baseline: str = option("vanilla", "the candidate that the others' speed-ups are over")
    title: str = option("spec-sdk report", "of the page")
    cycles: int = option(24, "how many are drawn in the timeline of a run that has events", minimum=1, maximum=400)


class Report(Task):
    """Shows what runs measured in one HTML page and in Markdown: speed, stages, acceptance, machine and commands."""

    name = "report"
    computes = False
    Config = ReportConfig
    config: ReportConfig

    def run(self, app: Settings) -> int:
        """Write report.html, report.md and a trace of every run that has events; their paths go to stdout; returns 0.

        Raises UserError for a directory without a run, and for files that cannot be used.
        """
        from spec_sdk.run_report.finding import read_runs
        from spec_sdk.run_report.groups import grouped
        from spec_sdk.run_report.page import html_page, markdown_page, parts_of
        from spec_sdk.run_report.timeline import trace_name, trace_of

        names = self._names()
        check_writable(app.output_dir)
        runs, failed = read_runs(names)
        candidates = {candidate.name for run in runs for candidate in run.candidates}
        chosen = self.config.baseline
        if chosen not in candidates and chosen != ReportConfig.baseline:
            raise UserError(f"task.baseline: no run has a candidate '{chosen}'{did_you_mean(chosen, candidates)}")
        parts = parts_of(grouped(runs, chosen), self.config.cycles)
        files = {
            PAGE: html_page(self.config.title, parts, failed),
            MARKDOWN: markdown_page(self.config.title, parts, failed),
        }
        for number, run in enumerate(runs, start=1):
            trace = trace_of(run)
            if trace is not None:
                files[trace_name(number)] = json_text(trace)
        app.output_dir.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(app.output_dir / name, content)
            print(app.output_dir / name)
        for number, run in enumerate(runs, start=1):
            for reason in [*run.partial, *run.failures]:
                print(f"note: run {number} ({run.path}): {reason}", file=sys.stderr)
        for line in failed:
            print(f"note: {line}", file=sys.stderr)
        return 0

    def _names(self) -> list[str]:
        runs = self.config.runs
        if runs is None:
            raise UserError("task.runs: name the directories of runs: task.runs='[outputs/a,outputs/b]'")
        names = runs if isinstance(runs, list) else [runs]
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise UserError(f"task.runs: {runs!r} must be a directory or a list of them")
        return names
