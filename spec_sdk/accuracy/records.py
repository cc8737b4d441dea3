"""What ``task=accuracy`` writes to ``bench.jsonl`` beside what every benchmark does: references and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_sdk.accuracy.metrics import Metric, Score, Scorer, metric
from spec_sdk.bench.reading import BenchRun, read_bench
from spec_sdk.bench.records import AnswerRecord, Record


@dataclass(frozen=True, kw_only=True)
class ScoredAnswer(AnswerRecord):
    """An answer's text, and how near each metric found it to its prompt's reference, by the metric's name."""

    text: str
    scores: Mapping[str, Score]


@dataclass(frozen=True)
class SamplerChoice:
    """A sampler among those that are compared. ``candidate``: what records call it; ``sampler``: its plugin.

    ``baseline``: the candidate that it is held against, itself if it is that. ``alpha`` and ``beta``: its scales, None
    of a sampler that has none. ``depth``: tokens drafted per cycle (γ), None where the run's policy chooses.
    """

    candidate: str
    sampler: str
    baseline: str
    alpha: float | None = None
    beta: float | None = None
    depth: int | None = None


@dataclass(frozen=True)
class AccuracyRun:
    """The records of a run, ``answers`` of all candidates among them."""

    bench: BenchRun
    answers: Sequence[ScoredAnswer]
    choices: Sequence[SamplerChoice]
    metrics: Sequence[Metric]


def read_accuracy(directory: Path) -> AccuracyRun:
    """The records of a run's directory. Raises UserError for one that has none, or that cannot be read."""
    run = read_bench(directory, ScoredAnswer)
    choices = [each.typed(SamplerChoice) for each in run.head.parts("samplers")]
    metrics = [metric(name, f"{run.head.where}, metrics") for name in run.head.get("metrics", list[str])]
    return AccuracyRun(run, [a for a in run.answers if isinstance(a, ScoredAnswer)], choices, metrics)


class Scoring:
    """Passes records on to ``write``; those of answers with their texts and scores. ``references``: by prompt."""

    def __init__(
        self,
        write: Callable[[list[Record]], None],
        decode: Callable[[Sequence[int]], str],
        references: Mapping[str, str],
        scorers: Mapping[str, Scorer],
    ) -> None:
        self._write = write
        self._decode = decode
        self._references = references
        self._scorers = scorers

    def __call__(self, records: list[Record]) -> None:
        self._write([self._scored(record) if record["record"] == "answer" else record for record in records])

    def _scored(self, record: Record) -> Record:
        text, reference = self._decode(record["tokens"]).strip(), self._references[record["prompt"]]
        scores = {name: score(text, reference) for name, score in self._scorers.items()}
        return {**record, "text": text, "scores": scores}


def reference_records(references: Mapping[str, str]) -> list[Record]:
    """A record of each prompt's reference."""
    return [{"record": "reference", "prompt": p, "reference": text} for p, text in references.items()]
