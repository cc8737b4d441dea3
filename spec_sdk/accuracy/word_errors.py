"""The word error rate of a text, by jiwer, after Whisper's own normaliser made text and reference alike.

The normaliser (Radford et al. 2022, Appendix C; package whisper-normalizer) drops case, punctuation and fillers, and
of English writes numbers, contractions and British spellings in one way.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spec_sdk.errors import UserError

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces between words: their letters count as words."""


@dataclass(frozen=True)
class WordErrors:
    """Edits that make the transcript of the reference, whose ``words`` there are after normalising.

    ``substitutions``, ``deletions`` (words of the reference that are missing) and ``insertions``.
    """

    words: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def rate(self) -> float | None:
        """Edits over words; above 1 if more was written than said. None where the reference has no words."""
        return (self.substitutions + self.deletions + self.insertions) / self.words if self.words else None

    @staticmethod
    def total(parts: Iterable[WordErrors]) -> WordErrors:
        """Those of several transcripts together: long ones weigh more than short ones."""
        every = list(parts)
        return WordErrors(
            sum(each.words for each in every),
            sum(each.substitutions for each in every),
            sum(each.deletions for each in every),
            sum(each.insertions for each in every),
        )


def package(module: str) -> Any:
    """A module that scores texts. Raises UserError, saying what to install, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0].replace("_", "-")
        raise UserError(f"{name} cannot be imported ({error}): pip install 'spec-sdk[accuracy]'") from error


def require(language: str) -> None:
    """Raise UserError where the packages for a language are not installed."""
    for module in ("jiwer", _normalisers(language)):
        package(module)


def word_errors(reference: str, transcript: str, language: str) -> WordErrors:
    """The edits of a transcript, both texts normalised as the language is. Raises UserError without the packages."""
    normalise = normaliser(language)
    said, written = normalise(reference), normalise(transcript)
    if not said.split():
        # jiwer refuses to count beside nothing
        return WordErrors(0, 0, 0, len(written.split()))
    found = package("jiwer").process_words(said, written)
    return WordErrors(len(said.split()), found.substitutions, found.deletions, found.insertions)


def _normalisers(language: str) -> str:
    return "whisper_normalizer.english" if language == "en" else "whisper_normalizer.basic"


@functools.cache
def normaliser(language: str) -> Callable[[str], str]:
    """Whisper's, of English or of any other language. Raises UserError without the package."""
    module = package(_normalisers(language))
    made: Callable[[str], str]
    if language == "en":
        made = module.EnglishTextNormalizer()
    else:
        made = module.BasicTextNormalizer(split_letters=language in WITHOUT_SPACES)
    return made
