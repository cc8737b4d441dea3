"""Runs that may be compared, with names for their candidates that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.bench.records import AnswerRecord, CandidateRecord
from spec_sdk.run_report.records import Run

LONGEST_LABEL = 60


@dataclass(frozen=True)
class Series:
    """A candidate of one run. ``number``: the run's place on the page, from 1; ``label``: as the figures call it."""

    run: Run
    number: int
    candidate: CandidateRecord
    label: str

    def answers(self, temperature: float | None = None, batch_size: int | None = None) -> list[AnswerRecord]:
        """Its answers, of one temperature and batch size if they are given."""
        return [
            answer
            for answer in self.run.answers
            if answer.candidate == self.candidate.name
            and temperature in (None, answer.temperature)
            and batch_size in (None, answer.batch_size)
        ]


@dataclass(frozen=True)
class Group:
    """Runs on one machine, of one target in one dtype, with the same versions. ``baseline``: the name asked for."""

    runs: Mapping[int, Run]
    series: Sequence[Series]
    baseline: str
    _baselines: dict[tuple[int, str], Series | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def any_run(self) -> Run:
        """One of them, for what they have in common."""
        return next(iter(self.runs.values()))

    @property
    def temperatures(self) -> list[float]:
        return sorted({answer.temperature for run in self.runs.values() for answer in run.answers})

    def is_baseline(self, series: Series) -> bool:
        return series.candidate.name == self.baseline

    def baseline_of(self, series: Series) -> Series | None:
        """What ``series`` is compared with: the baseline of its own run, else that of a run which was asked the same.

        None if there is none that answered one of the same questions.
        """
        key = (series.number, series.candidate.name)
        if key not in self._baselines:
            self._baselines[key] = self._find_baseline(series)
        return self._baselines[key]

    def _find_baseline(self, series: Series) -> Series | None:
        asked = {answer.question for answer in series.answers()}
        named = sorted(filter(self.is_baseline, self.series), key=lambda other: other.number != series.number)
        for other in named:
            same = other.run is series.run or same_workload(other.run, series.run)
            if same and asked & {answer.question for answer in other.answers()}:
                return other
        return None


def same_workload(a: Run, b: Run) -> bool:
    """Whether two runs of a group were asked the same."""
    return dict(a.workload) == dict(b.workload)


def grouped(runs: Sequence[Run], baseline: str) -> list[Group]:
    """The runs by their settings, in order; runs are numbered over all groups."""
    by_setting: dict[Any, dict[int, Run]] = {}
    for number, run in enumerate(runs, start=1):
        by_setting.setdefault(run.setting, {})[number] = run
    return [Group(found, _series(found), baseline) for found in by_setting.values()]


def _series(runs: Mapping[int, Run]) -> list[Series]:
    found = [(number, run, candidate) for number, run in runs.items() for candidate in run.candidates]
    labels = [_label(run, candidate, [other for _, _, other in found]) for _, run, candidate in found]
    count = Counter(labels)
    return [
        Series(run, number, candidate, label if count[label] == 1 else f"{label} (run {number})")
        for (number, run, candidate), label in zip(found, labels, strict=True)
    ]


def _label(run: Run, candidate: CandidateRecord, others: Sequence[CandidateRecord]) -> str:
    """A bench names its candidates; another run's pipeline is named with what was changed of it.

    What was changed of all candidates of its name tells it from none of them, and is left out.
    """
    if run.kind == "bench":
        return candidate.name
    alike = [other for other in others if other.name == candidate.name and other is not candidate]
    telling = [o for o in candidate.overrides if not alike or not all(o in other.overrides for other in alike)]
    label = ", ".join([candidate.name, *telling])
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
