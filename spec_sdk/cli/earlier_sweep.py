"""What an earlier sweep left in the same directory: set aside where a job begins anew, kept where none did."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spec_sdk.cli.outcomes import Outcome, read_metrics
from spec_sdk.run_output import METRICS, SUMMARY

EARLIER_METRICS, EARLIER_SUMMARY = f"earlier_{METRICS}", f"earlier_{SUMMARY}"


def set_aside_summary(directory: Path) -> None:
    """In a sweep's directory, once its first job begins: should the sweep be killed, there are its outcomes."""
    _rename(directory / SUMMARY, directory / EARLIER_SUMMARY)


def set_aside_metrics(directory: Path) -> None:
    """In the directory of a job that begins: what it leaves as its own is its own, however it ends."""
    _rename(directory / METRICS, directory / EARLIER_METRICS)


def forget_metrics(directory: Path) -> None:
    """In the directory of a job that is done."""
    (directory / EARLIER_METRICS).unlink(missing_ok=True)


def jobs_not_run_again(directory: Path, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The entries of the earlier sweep's jobs that are none of ``outcomes``, and whose results lie there as they were.

    Each is marked with ``earlier``.
    """
    try:
        jobs = json.loads((directory / EARLIER_SUMMARY).read_text(encoding="utf-8"))["jobs"]
        there = {Path(outcome.output_dir).resolve() for outcome in outcomes}
        names = {outcome.name for outcome in outcomes}
        return [{**job, "earlier": True} for job in jobs if job["job"] not in names and _as_it_was(job, there)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def forget_summary(directory: Path) -> None:
    """In a sweep's directory, where its own is written."""
    (directory / EARLIER_SUMMARY).unlink(missing_ok=True)


def _as_it_was(job: dict[str, Any], others: set[Path]) -> bool:
    if job["output_dir"] is None:
        return True
    place = Path(job["output_dir"])
    # a sweep between the two may have begun it anew and been killed
    return place.resolve() not in others and (read_metrics(place) or {}).get("summary") == job["summary"]


def _rename(path: Path, to: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.replace(to)
