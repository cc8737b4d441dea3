"""How fast answers were, beside a baseline's of the same questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spec_sdk.bench.records import AnswerRecord
from spec_sdk.bench.totals import tokens_per_second
from spec_sdk.common_prefix import common_prefix
from spec_sdk.metrics import speedup
from spec_sdk.run_report.groups import Group, Series


@dataclass(frozen=True)
class Comparison:
    """Two candidates' answers to the same questions, in pairs: the first is ours, the second the baseline's."""

    series: Series
    baseline: Series
    pairs: Sequence[tuple[AnswerRecord, AnswerRecord]]

    @property
    def speedup(self) -> float | None:
        """Tokens per second of all answers together, ours by the baseline's, prefill included."""
        ours, theirs = (tokens_per_second([pair[i] for pair in self.pairs]) for i in (0, 1))
        return speedup(ours, theirs)

    @property
    def each(self) -> list[float]:
        """The speed-up of every answer, sorted."""
        found = (speedup(tokens_per_second([ours]), tokens_per_second([theirs])) for ours, theirs in self.pairs)
        return sorted(each for each in found if each is not None)

    def of_task(self, task: str) -> Comparison:
        """That of the questions of one task."""
        return Comparison(self.series, self.baseline, [pair for pair in self.pairs if pair[0].task == task])


def compared(group: Group, series: Series, temperature: float) -> Comparison | None:
    """``series`` beside its baseline, both answering one prompt at a time; None for the baseline itself, and where
    nothing can be compared.
    """
    baseline = group.baseline_of(series)
    if baseline is None or group.is_baseline(series):
        return None
    theirs = {answer.question: answer for answer in baseline.answers(temperature, 1)}
    ours = series.answers(temperature, 1)
    pairs = [(answer, theirs[answer.question]) for answer in ours if answer.question in theirs]
    return Comparison(series, baseline, pairs) if pairs else None


def total(values: Iterable[float | None]) -> float | None:
    """Their sum; None if there is none, or one of them is not known."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def divergence(pairs: Iterable[tuple[AnswerRecord, AnswerRecord]]) -> tuple[float, int, int] | None:
    """How far answers leave the baseline's: the mean share of an answer that comes after the last token in common,
    how many answers differ, and how many were compared.

    None where no pair of answers has its tokens.
    """
    shares = [_left(ours.tokens, theirs.tokens) for ours, theirs in pairs if ours.tokens and theirs.tokens]
    if not shares:
        return None
    return sum(shares) / len(shares), sum(share > 0 for share in shares), len(shares)


def _left(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """The share of the longer answer that is not common to both from the start."""
    return 1 - common_prefix(ours, theirs) / max(len(ours), len(theirs))
