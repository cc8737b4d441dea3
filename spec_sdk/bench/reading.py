"""``bench.jsonl`` as whoever computes something from it reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spec_sdk.bench.records import (
    FILE,
    SCHEMA_VERSION,
    AnswerRecord,
    BatchRecord,
    CandidateRecord,
    CheckRecord,
    FailureRecord,
    Setting,
)
from spec_sdk.bench.same_settings import first_difference, settings_of
from spec_sdk.errors import UserError
from spec_sdk.json_lines import JsonObject, Lines

T = TypeVar("T")


@dataclass
class BenchRun:
    """All records of a run: of two of the same thing the later one. ``candidates``, by name, are those that started.

    ``head``: the first record of the run. ``torn``: the file's last line was cut off, and is left out.
    """

    head: JsonObject
    candidates: dict[str, CandidateRecord] = field(default_factory=dict)
    answers: list[AnswerRecord] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    checks: list[CheckRecord] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)
    torn: bool = False

    @property
    def names(self) -> list[str]:
        """The candidates' names in the order of the run, plain decoding first."""
        return list(self.head.get("candidates", dict))

    def kind_of(self, candidate: str) -> str:
        """``pipeline`` or ``peer``, also of one that did not start."""
        return str(self.head.get("candidates", dict).get(candidate, "peer"))

    @property
    def settings(self) -> list[Setting]:
        """All temperatures at all batch sizes."""
        temperatures, batch_sizes = self.head.get("temperatures", list[float]), self.head.get("batch_sizes", list[int])
        return [Setting(t, b) for b in batch_sizes for t in temperatures]


def read_bench(directory: Path, answer: type[AnswerRecord] = AnswerRecord) -> BenchRun:
    """The records of a run's directory, those of answers as ``answer``.

    Raises UserError for a directory that has none, or whose records cannot be read.
    """
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"{directory}: it has no {FILE}, as a run of task=bench writes it")
    lines = Lines(path)
    run = bench_run(lines, str(path), answer)
    run.torn = lines.torn
    return run


def bench_run(records: Iterable[JsonObject], where: str, answer: type[AnswerRecord] = AnswerRecord) -> BenchRun:
    """Records in order, sorted by kind.

    Raises UserError, beginning with ``where``, if there is none, and beginning with its line for one that is not as it
    should be: of another version, of other settings than the first, incomplete, or of a candidate that never started.
    """
    lines = iter(records)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{where}: there is no record of a run in it")
    if (kind := first.get("record", str)) != "run":
        raise UserError(f"{first.where}: the first record must be of a run, not '{kind}'")
    _check_version(first)
    run = BenchRun(first)
    readers: Mapping[str, Callable[[JsonObject], Any]] = {
        "run": lambda record: _check_the_same(first, record),
        CandidateRecord.RECORD: lambda record: _candidate(run, record),
        AnswerRecord.RECORD: lambda record: run.answers.append(_started(run, record).typed(answer)),
        BatchRecord.RECORD: lambda record: run.batches.append(_started(run, record).typed(BatchRecord)),
        CheckRecord.RECORD: lambda record: run.checks.append(_started(run, record).typed(CheckRecord)),
        FailureRecord.RECORD: lambda record: run.failures.append(record.typed(FailureRecord)),
    }
    for record in lines:
        read = readers.get(record.get("record", str))
        # of other kinds, such as warm_up, nothing is computed
        if read is not None:
            read(record)
    run.answers = _last(run.answers, "candidate", "question")
    run.batches = _last(run.batches, "candidate", "setting", "round", "first")
    run.checks = _last(run.checks, "candidate", "batch_size", "round", "prompt", "turn")
    run.failures = _last(run.failures, "candidate", "temperature", "batch_size", "round", "prompt", "turn")
    return run


def _check_version(head: JsonObject) -> None:
    version = head.get("schema_version", int)
    if version != SCHEMA_VERSION:
        raise UserError(f"{head.where}: schema version {version}; this version of spec-sdk reads {SCHEMA_VERSION}")


def _check_the_same(first: JsonObject, head: JsonObject) -> None:
    _check_version(head)
    differing = first_difference(settings_of(first.data), settings_of(head.data))
    if differing is not None:
        raise UserError(f"{head.where}: it goes on with other settings than {first.where} ({differing})")


def _candidate(run: BenchRun, record: JsonObject) -> None:
    candidate = record.typed(CandidateRecord)
    run.candidates[candidate.name] = candidate
    # it was loaded after all, by a run that went on
    run.failures = [f for f in run.failures if (f.candidate, f.temperature) != (candidate.name, None)]


def _started(run: BenchRun, record: JsonObject) -> JsonObject:
    name = record.get("candidate", str)
    if name not in run.candidates:
        raise UserError(f"{record.where}: the candidate '{name}' was not introduced before")
    return record


def _last(records: Iterable[T], *key: str) -> list[T]:
    """Of those with the same values of ``key`` the last one."""
    return list({tuple(getattr(record, name) for name in key): record for record in records}.values())
