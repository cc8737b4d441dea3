"""What the files of a run say, in one shape for all kinds of runs: the one that a benchmark's records have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.bench.records import AnswerRecord, BatchRecord, CandidateRecord, CheckRecord


@dataclass(frozen=True)
class Cycle:
    """One cycle on the clock: ``end`` in seconds since the epoch (of a bench, since the answer was asked for),
    ``seconds`` by stage, and ``facts`` of it.

    Of a process that follows it is one call, and the request is None.
    """

    request: int | None
    end: float
    seconds: Mapping[str, float]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Timeline:
    """When a process worked on what: prefills and cycles of one pipeline, in order."""

    candidate: str
    process: int
    cycles: Sequence[Cycle]


@dataclass(frozen=True)
class Run:
    """One run. ``machine``, ``target``, ``dtype`` and ``weights`` are what its numbers depend on beside the pipeline.

    ``workload``: what was asked of every candidate, in words; ``command``: what runs it again, for a shell.
    ``partial``: why it is not all that it was meant to be; empty of a whole run.
    """

    path: Path
    kind: str
    command: str
    started: str | None
    machine: Mapping[str, Any]
    target: str
    dtype: str
    weights: str
    workload: Mapping[str, Any]
    candidates: Sequence[CandidateRecord]
    answers: Sequence[AnswerRecord] = ()
    batches: Sequence[BatchRecord] = ()
    checks: Sequence[CheckRecord] = ()
    failures: Sequence[str] = ()
    partial: Sequence[str] = ()
    timelines: Sequence[Timeline] = ()

    @property
    def setting(self) -> tuple[Any, ...]:
        """What two runs must have in common for their numbers to stand side by side: tasks measure differently."""
        return self.kind, self.target, self.dtype, self.weights, machine_key(self.machine)


def machine_key(machine: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for facts of one machine. ``device`` also says how threads waited at that time, ``hardware`` does not."""
    passing = {"device"} if "hardware" in machine else set()
    return tuple(sorted((key, repr(value)) for key, value in machine.items() if key not in passing))
