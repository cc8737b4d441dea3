"""Tags in a text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Iterable


def first_of(text: str, tags: Iterable[str]) -> tuple[int, str] | None:
    """Where the first of these tags begins, and which it is; None where there is none."""
    found = [(place, tag) for tag in tags if (place := text.find(tag)) >= 0]
    return min(found, default=None)


def begun(text: str, tags: Iterable[str]) -> int:
    """How many of the last characters may be the beginning of one of these tags."""
    return max((_begun(text, tag) for tag in tags), default=0)


def certain(text: str, tags: Iterable[str]) -> int:
    """How many of the first characters stand before anything that may be such a tag, and before the white space in
    front of it.
    """
    return len(text[: len(text) - begun(text, tags)].rstrip())


def _begun(text: str, tag: str) -> int:
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
