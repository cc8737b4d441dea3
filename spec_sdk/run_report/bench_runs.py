"""The run in a directory of ``task=bench``."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from spec_sdk.bench.reading import BenchRun, read_bench
from spec_sdk.bench.records import FILE, AnswerRecord, FailureRecord
from spec_sdk.errors import UserError
from spec_sdk.metrics import STAGES
from spec_sdk.run_report.records import Cycle, Run, Timeline

PASSING = ("load_average", "commit")
"""What is told beside a machine, and makes it no other."""


def read_bench_run(directory: Path) -> Run:
    """The run of a directory. Raises UserError as :func:`spec_sdk.bench.reading.read_bench`."""
    bench = read_bench(directory)
    head = bench.head
    prompts: dict[str, Any] = head.maybe("prompts", dict) or {}
    machine: dict[str, Any] = head.get("machine", dict)
    used = {answer.candidate for answer in bench.answers} | {failure.candidate for failure in bench.failures}
    return Run(
        path=directory,
        kind="bench",
        command=shlex.join(head.get("command", list[str])),
        started=head.maybe("started", str),
        machine={**{k: v for k, v in machine.items() if k not in PASSING}, "spec_sdk": head.data.get("spec_sdk")},
        target=head.get("target", str),
        dtype=head.get("dtype", str),
        weights=str(head.data.get("weights") or "as stored"),
        workload={
            "prompts": prompts.get("file"),
            "sha256": prompts.get("sha256"),
            "count": prompts.get("count"),
            "new tokens": head.data.get("new_tokens"),
            "rounds": head.data.get("rounds"),
        },
        candidates=[candidate for name, candidate in bench.candidates.items() if name in used],
        answers=bench.answers,
        batches=bench.batches,
        checks=bench.checks,
        failures=[_in_words(failure) for failure in bench.failures],
        timelines=_timelines(directory, bench),
        partial=[*["its last line is cut off"] * bench.torn, *_missing(bench)],
    )


def _missing(bench: BenchRun) -> list[str]:
    """Candidates with fewer answers than others. All are asked the same."""
    counts = Counter(answer.candidate for answer in bench.answers)
    if not counts:
        return ["there is no answer in it"]
    most = max(counts.values())
    return [f"{name} has {counts[name]} of {most} answers" for name in bench.candidates if counts[name] < most]


def _timelines(directory: Path, bench: BenchRun) -> list[Timeline]:
    """Of every candidate under the first temperature that there are any of."""
    kept = [answer for answer in bench.answers if answer.timeline]
    of_first = [answer for answer in kept if answer.temperature == kept[0].temperature]
    try:
        return [Timeline(answer.candidate, 0, _cycles(answer)) for answer in of_first]
    except KeyError as missing:
        raise UserError(f"{directory / FILE}: a part of a timeline lacks {missing}") from missing


def _cycles(answer: AnswerRecord) -> list[Cycle]:
    """Prefill and cycles of an answer."""
    cycles = []
    for part in answer.timeline or ():
        stages = ["prefill"] if "prefill" in part else STAGES
        facts = {key: int(part[key]) for key in ("step", "drafted", "accepted", "tokens") if key in part}
        cycles.append(Cycle(0, part["end_s"], {stage: part[stage] for stage in stages}, facts))
    return cycles


def _in_words(failure: FailureRecord) -> str:
    where = [f"{key} {value}" for key in ("prompt", "turn", "temperature") if (value := getattr(failure, key))]
    at = f" ({', '.join(where)})" if where else ""
    return f"{failure.candidate}{at}: {failure.error}"
