"""The pieces that an answer is read as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Tools = Mapping[str, Mapping[str, Any]]
"""The functions that may be called: name → the JSON Schema of their arguments."""


@dataclass(frozen=True)
class Thought:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True)
class Content:
    """What it answered."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a function. ``arguments``: a JSON text, or the beginning of one if the call is not ``whole``."""

    name: str
    arguments: str
    whole: bool = True


Piece = Thought | Content | Call


class Reader(Protocol):
    """Reads a text as it comes. However it is cut, what is pushed comes to the same pieces, texts of a kind joined.

    ``thinking``: whether what comes next is a thought, as far as the text tells so far.
    """

    @property
    def thinking(self) -> bool: ...

    def push(self, text: str) -> list[Piece]:
        """Take text; return what is certain by now and was not returned before."""
        ...

    def flush(self) -> list[Piece]:
        """What was held back, at the end of the answer."""
        ...


class HoldingReader(ABC):
    """A reader that holds text back until it is certain what that is."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._goes_on(pieces):
            pass
        return pieces

    @abstractmethod
    def _goes_on(self, pieces: list[Piece]) -> bool:
        """Read on in what is held; whether more of it may be read now."""


class ContentReader:
    """Of a text that is content throughout."""

    thinking = False

    def push(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def flush(self) -> list[Piece]:
        return []
