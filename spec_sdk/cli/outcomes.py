"""How the jobs of a sweep ended: a line for each in a file that all their processes append to."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.cli.jobs import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED
from spec_sdk.run_output import METRICS, OUTCOMES


@dataclass
class Outcome:
    """How a job of a sweep ended: its exit status, one line if it failed, where it wrote, the values of its metrics.

    ``prompt_file_sha256``: of what its file of prompts held when it began.
    """

    number: int
    name: str
    status: int
    error: str | None
    output_dir: str
    metric: dict[str, float] | None = None
    prompt_file_sha256: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The job's entry of summary.json, with the summary of its metrics.json if it wrote one."""
        directory = Path(self.output_dir)
        # one that was refused may have named a directory that is none of this sweep's
        wrote = self.status in (EXIT_OK, EXIT_INTERRUPTED, EXIT_TERMINATED)
        metrics = (read_metrics(directory) if wrote else None) or {}
        entry = {
            "job": self.name,
            "status": self.status,
            "error": self.error,
            "output_dir": self.output_dir if directory.is_dir() else None,
            "prompt_file_sha256": self.prompt_file_sha256,
            "pipeline": metrics.get("pipeline"),
            "overridden": metrics.get("overridden"),
            "plugins": metrics.get("plugins"),
            "rounds_rows": metrics.get("rounds_rows"),
            "summary": metrics.get("summary"),
            "speedup": (metrics.get("comparison") or {}).get("speedup"),
        }
        return entry if self.metric is None else {**entry, "metric": self.metric}

    def append(self, directory: Path) -> None:
        """Add it to the sweep's file, whole: several processes may do so at once. Raises OSError."""
        line = json.dumps(dataclasses.asdict(self)) + "\n"
        file = os.open(directory / OUTCOMES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def read_metrics(directory: Path) -> dict[str, Any] | None:
    """A run's metrics.json; None if it wrote none."""
    path = directory / METRICS
    if not path.is_file():
        return None
    metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return metrics


def read_outcomes(directory: Path) -> list[Outcome]:
    """The outcomes of the sweep that writes into ``directory``, by the jobs' numbers."""
    path = directory / OUTCOMES
    if not path.is_file():
        return []
    read = [Outcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(read, key=lambda outcome: outcome.number)
