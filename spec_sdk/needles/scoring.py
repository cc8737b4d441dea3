"""When an answer holds the right one."""

from __future__ import annotations

import re
import unicodedata


def words(text: str) -> str:
    """``text`` as lower-case words with one space between: all that is no letter and no digit parts words."""
    return " ".join(re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold()))


def holds(answer: str, right: str) -> bool:
    """Whether ``right`` stands in ``answer`` as whole words, one after the other; case and punctuation do not count.

    So 473 does not hold 73, and a hash must be whole, and end where it ends.
    """
    return bool(words(right)) and f" {words(right)} " in f" {words(answer)} "
