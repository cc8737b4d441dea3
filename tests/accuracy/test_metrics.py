"""Metrics beside what their definitions give by hand."""

from __future__ import annotations

import sys

import pytest

from spec_sdk.accuracy.metrics import METRICS, metric, overall
from spec_sdk.errors import UserError

REFERENCE = "the grey cat sat on the mat"
ANSWER = "the cat sat on a mat today"


def score(name: str, answer: str, reference: str) -> tuple[float, float]:
    return metric(name).scorer()(answer, reference)


@pytest.mark.parametrize(
    ("name", "common", "ours", "theirs"),
    [
        # the, cat, sat, on, mat: the second "the" has no partner
        ("rouge1", 5, 7, 7),
        # cat sat, sat on
        ("rouge2", 2, 6, 6),
        # the cat sat on mat
        ("rougeL", 5, 7, 7),
        ("rougeLsum", 5, 7, 7),
    ],
)
def test_rouge_is_f1_of_what_is_common(name: str, common: int, ours: int, theirs: int) -> None:
    precision, recall = common / ours, common / theirs
    assert score(name, ANSWER, REFERENCE)[0] == pytest.approx(2 * precision * recall / (precision + recall))
    assert score(name, ANSWER, REFERENCE)[1] == 1


def test_rouge_of_texts_of_different_length() -> None:
    f1 = 2 * (3 / 3) * (3 / 7) / (3 / 3 + 3 / 7)
    assert score("rouge1", "grey cat mat", REFERENCE)[0] == pytest.approx(f1)
    assert score("rouge1", "", REFERENCE) == (0.0, 1.0)


def test_rouge_passes_over_case_punctuation_and_endings() -> None:
    assert score("rouge1", "CATS, sitting.", "cat sits") == (1.0, 1.0)
    assert score("rouge1", "cat", "dog")[0] == 0


def test_rouge_lsum_takes_lines_for_sentences() -> None:
    reference, answer = "one two\nthree four", "three four\none two"
    assert score("rougeLsum", answer, reference)[0] == 1
    assert score("rougeL", answer, reference)[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("answer", "errors"),
    [
        (REFERENCE, 0),
        # grey left out, a for the, today put in
        (ANSWER, 3),
        ("", 7),
        ("the grey cat sat on the mat and and and and and and and and", 8),
    ],
)
def test_word_errors_are_counted(answer: str, errors: int) -> None:
    for name in ("wer", "wer_basic"):
        assert score(name, answer, REFERENCE) == (errors, 7)


def test_word_errors_of_a_reference_without_words() -> None:
    assert score("wer", "two words", "?!") == (2, 0)
    assert score("wer", "!", "?!") == (0, 0)
    assert overall([(2, 0)]) is None and overall([(2, 0), (0, 4)]) == 0.5


def test_english_is_normalised_as_whisper_does() -> None:
    said, written = (
        "Mister Smith isn't twenty-five, and his colour, um, is grey!",
        "Mr. Smith is not 25 and his color is gray",
    )
    assert score("wer", said, written)[0] == 0
    assert score("wer_basic", said, written)[0] > 0
    assert score("wer_basic", "Größe, ÉTÉ!", "größe été")[0] == 0


def test_scores_of_many_answers() -> None:
    assert overall([(1.0, 1.0), (0.5, 1.0)]) == 0.75
    # all errors by all words, and not the mean of the answers' rates
    assert overall([(1, 10), (1, 2)]) == pytest.approx(2 / 12)
    assert overall([]) is None


def test_an_unknown_metric_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"task\.metrics: unknown metric 'rogue1', did you mean 'rouge1'"):
        metric("rogue1")
    assert [metric(name).name for name in METRICS] == list(METRICS)
    assert [name for name in METRICS if not metric(name).higher_is_better] == ["wer", "wer_basic"]


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("rouge1", "rouge_score.rouge_scorer", "rouge-score"),
        ("wer", "jiwer", "jiwer"),
        ("wer_basic", "whisper_normalizer.basic", "whisper-normalizer"),
    ],
)
def test_a_missing_package_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{package} .*pip install 'spec-sdk\[accuracy\]'"):
        metric(name).scorer()


def test_a_metric_is_known_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a run are shown anew where nothing is scored."""
    for module in ("rouge_score.rouge_scorer", "jiwer", "whisper_normalizer.basic", "whisper_normalizer.english"):
        monkeypatch.setitem(sys.modules, module, None)
    assert [metric(name).label for name in METRICS][:2] == ["ROUGE-1", "ROUGE-2"]
