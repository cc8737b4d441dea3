"""Metrics by name: how near the text of an answer comes to a reference.

ROUGE (Lin, 2004) is computed by rouge-score, the word error rate by jiwer on texts that whisper-normalizer made alike
(Radford et al., 2022, Appendix C). The packages are the extra ``accuracy``, and are imported where something is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spec_sdk.accuracy.word_errors import package, require, word_errors
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.metrics import ratio

Score = tuple[float, float]
"""One answer's part of a score, and how much it weighs: F1 and 1; word errors and words of the reference."""
Scorer = Callable[[str, str], Score]
"""(answer, reference) → its score."""


@dataclass(frozen=True)
class Metric:
    """``label``: as papers call it. ``higher_is_better``: which way is up. ``make``: its scorer, from ``name``."""

    name: str
    label: str
    higher_is_better: bool
    make: Callable[[str], Scorer]

    def scorer(self) -> Scorer:
        """What scores answers. Raises UserError where a package is not installed, saying what to install."""
        return self.make(self.name)


def metric(name: str, option: str = "task.metrics") -> Metric:
    """The metric called ``name``, one of :data:`METRICS`. Raises UserError, naming ``option``, for another name."""
    if name not in METRICS:
        raise UserError(f"{option}: unknown metric '{name}'{did_you_mean(name, METRICS)}")
    return METRICS[name]


def overall(scores: Iterable[Score]) -> float | None:
    """The score of many answers: all parts by all weights, so a mean F1, or all errors by all words; None of none."""
    parts = list(scores)
    return ratio(sum(part for part, _ in parts), sum(weight for _, weight in parts))


def _rouge(name: str) -> Scorer:
    """F1, words stemmed, as ROUGE-1.5.5 does with ``-m``. Case and punctuation do not count."""
    scorer = package("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)

    def score(answer: str, reference: str) -> Score:
        return float(scorer.score(reference, answer)[name].fmeasure), 1.0

    return score


def _word_errors(name: str) -> Scorer:
    """Edits by words of the reference, texts normalised as :data:`NORMALISED` says."""
    language = NORMALISED[name]
    require(language)

    def score(answer: str, reference: str) -> Score:
        found = word_errors(reference, answer, language)
        return float(found.substitutions + found.deletions + found.insertions), float(found.words)

    return score


NORMALISED = {"wer": "en", "wer_basic": ""}
"""``wer``: numbers in digits, American spelling, no contractions; ``wer_basic``: lower case, no punctuation."""
METRICS = {
    each.name: each
    for each in (
        Metric("rouge1", "ROUGE-1", True, _rouge),
        Metric("rouge2", "ROUGE-2", True, _rouge),
        Metric("rougeL", "ROUGE-L", True, _rouge),
        Metric("rougeLsum", "ROUGE-Lsum", True, _rouge),
        Metric("wer", "WER", False, _word_errors),
        Metric("wer_basic", "WER, basic", False, _word_errors),
    )
}
"""``wer`` is for English, ``wer_basic`` for other languages; ``rougeLsum`` takes the lines of a text for sentences."""
