"""Which runs lie in the directories that a report is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_sdk.bench.records import FILE as BENCH
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.json_lines import JsonObject, Lines, read_object
from spec_sdk.run_output import METRICS, OUTCOMES, SUMMARY
from spec_sdk.run_report.bench_runs import read_bench_run
from spec_sdk.run_report.generate_runs import read_generate
from spec_sdk.run_report.records import Run


def read_runs(names: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs of all directories in order, each once, and a line for each job of a sweep that gave none.

    Raises UserError, which names the directory, for one without a run and for files that cannot be used.
    """
    runs: dict[Path, list[Run]] = {}
    failed: list[str] = []
    for name in names:
        _read(expanded(name, "task.runs"), runs, failed)
    return [run for found in runs.values() for run in found], failed


def _read(directory: Path, runs: dict[Path, list[Run]], failed: list[str]) -> None:
    place = directory.resolve()
    if place in runs:
        return
    if not directory.is_dir():
        what = "a file, not a directory" if directory.exists() else "not there"
        raise UserError(f"task.runs: {directory} is {what}; name the directory that a run wrote")
    if (directory / BENCH).is_file():
        runs[place] = [read_bench_run(directory)]
    elif (directory / METRICS).is_file():
        runs[place] = [read_generate(directory)]
    elif (directory / OUTCOMES).is_file():
        failed.append(f"{directory}: the sweep was cut off, or is still running; these are the jobs that had ended")
        _read_jobs(directory, list(Lines(directory / OUTCOMES)), "name", runs, failed)
    elif (directory / SUMMARY).is_file():
        summary = read_object(directory / SUMMARY)
        if "jobs" not in summary.data:
            raise UserError(f"task.runs: {summary.where} is of no sweep: it has no jobs")
        _read_jobs(directory, summary.parts("jobs"), "job", runs, failed)
    else:
        raise UserError(
            f"task.runs: {directory} has no run: neither {BENCH} (task=bench) nor {METRICS} (task=generate) nor "
            f"{SUMMARY} of a sweep"
        )


def _read_jobs(
    directory: Path, jobs: Sequence[JsonObject], names: str, runs: dict[Path, list[Run]], failed: list[str]
) -> None:
    """The runs of a sweep's jobs, whose names are under ``names``."""
    for job in jobs:
        name = job.get(names, str)
        wrote = job.maybe("output_dir", str)
        # a sweep that was moved has its jobs below it still
        places = [directory / Path(wrote).name, Path(wrote)] if wrote is not None else []
        place = next((place for place in places if place.is_dir()), None)
        if place is None or not any((place / file).is_file() for file in (BENCH, METRICS)):
            failed.append(f"{directory}, job {name}: {job.data.get('error') or 'it left no results'}")
            continue
        _read(place, runs, failed)
        if job.data.get("error"):
            failed.append(f"{directory}, job {name}: {job.data['error']}")
