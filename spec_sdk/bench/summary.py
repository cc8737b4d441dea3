"""``summary.json`` of a benchmark: all figures, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from spec_sdk.bench.figures import all_figures, faults, losslessness_of
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import SCHEMA_VERSION
from spec_sdk.events import finite


def summary_of(run: BenchRun) -> dict[str, Any]:
    """The run and its candidates as recorded, their figures under every setting, and what the checks found."""
    summary: dict[str, Any] = finite(
        {
            "schema_version": SCHEMA_VERSION,
            "run": run.head.data,
            "candidates": [candidate.as_record() for candidate in run.candidates.values()],
            "figures": [asdict(figures) for figures in all_figures(run)],
            "losslessness": [asdict(losslessness_of(run, name)) for name in run.names],
            "faults": faults(run),
            "failures": [failure.as_record() for failure in run.failures],
        }
    )
    return summary


def exit_status(run: BenchRun) -> int:
    """1 if a pipeline that says it is lossless is not, did not start, or failed at a prompt that fits; else 0."""
    pipelines = {name for name in run.names if run.kind_of(name) == "pipeline"}
    failed = any(f.candidate in pipelines and f.reason in ("not_started", "error") for f in run.failures)
    return 1 if failed or faults(run) else 0
