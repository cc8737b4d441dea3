"""Metrics by name: how near the text of an answer comes to a reference.

ROUGE (Lin, 2004) is computed by rouge-score, the word error rate by jiwer on texts that whisper-normalizer made alike
(Radford et al., 2022, Appendix C). The packages are the extra ``accuracy``, and are imported when a metric is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.metrics import ratio

Score = tuple[float, float]
"""One answer's part of a score, and how much it weighs: F1 and 1; word errors and words of the reference."""


@dataclass(frozen=True)
class Metric:
    """``label``: as papers call it. ``higher_is_better``: which way is up. ``score``: (answer, reference) → :data:`Score`.

    ``normalise``: what both texts become before they are compared, for people to see.
    """

    name: str
    label: str
    higher_is_better: bool
    score: Callable[[str, str], Score]
    normalise: Callable[[str], str] = str


def overall(scores: Iterable[Score]) -> float | None:
    """The score of many answers: all parts by all weights, so the mean F1, and all errors by all words; None of none."""
    parts = list(scores)
    return ratio(sum(part for part, _ in parts), sum(weight for _, weight in parts))


def metric(name: str, option: str = "task.metrics") -> Metric:
    """The metric called ``name``, one of :data:`METRICS`.

    Raises UserError, naming ``option``, for another name, and for a package that is not installed.
    """
    if name not in METRICS:
        raise UserError(f"{option}: unknown metric '{name}'{did_you_mean(name, METRICS)}")
    label, make = METRICS[name]
    return make(name, label)


def _rouge(name: str, label: str) -> Metric:
    """F1 of one kind of ROUGE, words stemmed, as in ROUGE-1.5.5 with ``-m``; upper case and punctuation do not count."""
    scorer = _package("rouge_score.rouge_scorer", "rouge-score").RougeScorer([name], use_stemmer=True)

    def score(answer: str, reference: str) -> Score:
        return float(scorer.score(reference, answer)[name].fmeasure), 1.0

    return Metric(name, label, True, score)


def _english_errors(name: str, label: str) -> Metric:
    """Of texts that Whisper's normaliser for English made: numbers in digits, American spelling, no contractions."""
    return _word_errors(name, label, _package("whisper_normalizer.english", "whisper-normalizer").EnglishTextNormalizer())


def _basic_errors(name: str, label: str) -> Metric:
    """Of texts that Whisper's normaliser for all other languages made: lower case, no punctuation."""
    return _word_errors(name, label, _package("whisper_normalizer.basic", "whisper-normalizer").BasicTextNormalizer())


def _word_errors(name: str, label: str, normalise: Callable[[str], str]) -> Metric:
    compare = _package("jiwer", "jiwer").process_words

    def alike(text: str) -> str:
        return " ".join(normalise(text).split())

    def score(answer: str, reference: str) -> Score:
        found = compare(alike(reference), alike(answer))
        words = found.hits + found.substitutions + found.deletions
        return float(found.substitutions + found.deletions + found.insertions), float(words)

    return Metric(name, label, False, score, alike)


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{package} is not installed: pip install 'spec-sdk[accuracy]' ({error})") from error


METRICS: dict[str, tuple[str, Callable[[str, str], Metric]]] = {
    "rouge1": ("ROUGE-1", _rouge),
    "rouge2": ("ROUGE-2", _rouge),
    "rougeL": ("ROUGE-L", _rouge),
    "rougeLsum": ("ROUGE-Lsum", _rouge),
    "wer": ("WER", _english_errors),
    "wer_basic": ("WER, basic", _basic_errors),
}
"""Name → label, and what makes it. ``wer`` is for English, ``wer_basic`` for other languages; ``rougeLsum`` takes the
lines of a text for sentences.
"""
