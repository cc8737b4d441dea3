"""What an earlier sweep left in the same directory: set aside where a job begins anew, kept where none did, and gone
on with where that is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.cli.jobs import EXIT_OK
from spec_sdk.cli.outcomes import Outcome, read_metrics, read_outcomes
from spec_sdk.errors import UserError
from spec_sdk.files import expanded, write_json
from spec_sdk.prompts import SHIPPED, STDIN
from spec_sdk.run_output import CONFIG, METRICS, OUTCOMES, SUMMARY

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


def keep_outcomes(directory: Path) -> None:
    """In the directory of a sweep that begins: the outcomes that a killed one left go to those of earlier ones."""
    with contextlib.suppress(ValueError, TypeError):
        jobs = [outcome.as_json() for outcome in read_outcomes(directory)]
        if jobs:
            names = {job["job"] for job in jobs}
            earlier = [job for job in _jobs(directory / EARLIER_SUMMARY) if job.get("job") not in names]
            write_json(directory / EARLIER_SUMMARY, {"jobs": [*earlier, *jobs]})
    (directory / OUTCOMES).unlink(missing_ok=True)


def finished_jobs(directory: Path) -> dict[str, tuple[str, str | None]]:
    """The jobs that ended well in the latest sweep into ``directory``, or before it: their names, those of their
    directories, and the :func:`digest_of` their prompts. None where there was no sweep.
    """
    path = directory / SUMMARY
    jobs = _jobs(path if path.is_file() else directory / EARLIER_SUMMARY)
    return {
        job["job"]: (Path(job["output_dir"]).name, job.get("prompt_file_sha256"))
        for job in jobs
        if job["status"] == EXIT_OK and job["output_dir"]
    }


def digest_of(prompt_file: object) -> str | None:
    """SHA-256 of what a file of prompts holds. None for no file, for stdin, which can be read once, and for what cannot
    be read, of which the job itself will tell.
    """
    if not isinstance(prompt_file, str) or prompt_file in ("", STDIN):
        return None
    with contextlib.suppress(OSError, UserError):
        path = SHIPPED.get(prompt_file) or expanded(prompt_file, "prompt_file")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return None


def is_of(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether what lies in a job's directory is a whole job's of this very config. A prompt that was not kept is none
    of it.
    """
    if (directory / EARLIER_METRICS).exists():
        # a sweep that was killed had begun it anew
        return False
    try:
        kept = yaml.safe_load((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(kept, dict) and _comparable(kept) == _comparable(yaml.safe_load(yaml.safe_dump(dict(config))))


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """But for what does not change a job's result."""
    return {key: value for key, value in config.items() if key not in ("sweep", "output_dir")}


def _jobs(path: Path) -> list[dict[str, Any]]:
    try:
        jobs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["jobs"]
        return [job for job in jobs if {"job", "status", "output_dir"} <= job.keys()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


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
