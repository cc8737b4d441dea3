"""Word error rates: worked out by hand, and a normaliser that is transformers' (which is OpenAI's)."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from spec_sdk.accuracy.word_errors import WordErrors, normaliser, word_errors

TEXTS = (
    "Mr. O'Neill's colour-blind friend paid twenty-one pounds fifty, uh, on the 3rd of May 1999!",
    "It's (applause) two point five per cent; I can't, won't, shan't. He'd gone [noise] away",
    "The one hundred and first time: $3.50, €20 million, 1,000 and one oh one.",
    "naïve café -- Ångström … \N{EM DASH} hmm, mhm",
    "",
    "  \t ",
)


@pytest.mark.parametrize("text", TEXTS)
def test_the_normaliser_is_that_of_transformers(text: str) -> None:
    spelling = next(path for path in files("whisper_normalizer").rglob("english.json"))  # type: ignore[attr-defined]
    english = EnglishTextNormalizer(json.loads(spelling.read_text()))
    assert normaliser("en")(text).split() == english(text).split()
    assert normaliser("de")(text).split() == BasicTextNormalizer()(text).split()
    assert normaliser("zh")(text).split() == BasicTextNormalizer(split_letters=True)(text).split()


@pytest.mark.parametrize(
    ("reference", "transcript", "language", "expected"),
    [
        ("the cat sat on the mat", "The cat sat on the mat.", "en", (6, 0, 0, 0)),
        ("the cat sat on the mat", "a cat sat the mat now", "en", (6, 1, 1, 1)),
        ("the cat", "", "en", (2, 0, 2, 0)),
        ("", "thank you", "en", (0, 0, 0, 2)),
        ("[noise]", "", "en", (0, 0, 0, 0)),
        ("his favourite colour", "his favorite color", "en", (3, 0, 0, 0)),
        ("his favourite colour", "his favorite color", "fr", (3, 2, 0, 0)),
        ("twenty-one", "21", "en", (1, 0, 0, 0)),
        ("今天天气", "今日天气好", "zh", (4, 1, 0, 1)),
    ],
)
def test_edits(reference: str, transcript: str, language: str, expected: tuple[int, ...]) -> None:
    found = word_errors(reference, transcript, language)
    assert found == WordErrors(*expected)
    words, edits = expected[0], sum(expected[1:])
    assert found.rate == (edits / words if words else None)


def test_a_total_is_of_words_and_no_mean_of_rates() -> None:
    total = WordErrors.total([WordErrors(8, 1, 0, 0), WordErrors(2, 0, 1, 3), WordErrors(0, 0, 0, 1)])
    assert total == WordErrors(10, 1, 1, 4) and total.rate == 0.6
