"""Whose turn it is where several are measured side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def rotated(rivals: Iterable[T], turn: int) -> list[T]:
    """The rivals in the order of this turn: each turn begins with the next one."""
    every = list(rivals)
    first = turn % len(every) if every else 0
    return every[first:] + every[:first]
