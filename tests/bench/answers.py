"""Candidates and records made up by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from spec_sdk.bench.candidate import Ask, Candidate, Facts, Measured
from spec_sdk.bench.reading import BenchRun, bench_run
from spec_sdk.bench.records import SCHEMA_VERSION, AnswerRecord
from spec_sdk.json_lines import JsonObject

Reply = Callable[[Ask], Measured]


def measured(tokens: Sequence[int], seconds: float = 1.0, **more: Any) -> Measured:
    return Measured(list(tokens), "length", seconds, **more)


class Scripted(Candidate):
    """Answers as ``reply`` says, and notes what it was asked, in the order of all that share ``asked``."""

    kind = "pipeline"

    def __init__(self, name: str, reply: Reply, asked: list[tuple[str, Ask]] | None = None, most: int = 8) -> None:
        super().__init__(name)
        self.asked = [] if asked is None else asked
        self.begun: list[int] = []
        self._reply = reply
        self._most = most

    def facts(self) -> Facts:
        return Facts(pipeline=self.name, guarantee="exact")

    def refusal(self, temperature: float, batch_size: int) -> str | None:
        return None if batch_size <= self._most else f"not {batch_size} at once"

    def begin(self, batch_size: int) -> None:
        self.begun.append(batch_size)

    def answer(self, ask: Ask) -> Measured:
        self.asked.append((self.name, ask))
        return self._reply(ask)


def answer(candidate: str, prompt: str, new_tokens: int, seconds: float, **more: Any) -> dict[str, Any]:
    """An answer record."""
    about: dict[str, Any] = {"temperature": 0.0, "batch_size": 1, "round": 0, "task": "qa", "turn": 0, "seed": 0}
    about |= {"prompt_tokens": 5, "tokens": list(range(new_tokens)), "finish_reason": "length"}
    known = {"candidate": candidate, "prompt": prompt, "new_tokens": new_tokens, "seconds": seconds}
    return AnswerRecord(**{**about, **known, **more}).as_record()


def run_of(records: Sequence[dict[str, Any]], candidates: Sequence[str] = ("vanilla", "fast"), **more: Any) -> BenchRun:
    """A run with these records after its first."""
    first = {
        "record": "run",
        "schema_version": SCHEMA_VERSION,
        "candidates": dict.fromkeys(candidates, "pipeline"),
        "temperatures": [0.0],
        "batch_sizes": [1],
        **more,
    }
    named = [
        {"record": "candidate", "candidate": name, "kind": "pipeline", "guarantee": "exact"} for name in candidates
    ]
    lines = json.loads(json.dumps([first, *named, *records]))
    return bench_run([JsonObject(f"line {i}", line) for i, line in enumerate(lines, start=1)], "bench.jsonl")
