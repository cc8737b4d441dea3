"""Thoughts between tags, at the begin of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spec_sdk.serve.reading.pieces import Content, Piece, Thought
from spec_sdk.serve.reading.tags import certain


@dataclass(frozen=True)
class ThoughtTags:
    """What a model writes before its thoughts, and behind them. ``token``: what of the former is a special token, if
    not all of it.
    """

    open: str
    close: str
    token: str = ""

    @property
    def marks(self) -> tuple[str, str]:
        """What may be special tokens."""
        return self.token or self.open, self.close


class Begin(Enum):
    """Where an answer begins: inside of thoughts that the prompt opened, behind those that it closed, or before."""

    INSIDE = 1
    BEHIND = 2
    BEFORE = 3


def begin_behind(prompt: str, tags: ThoughtTags) -> Begin:
    """Where an answer to a rendered prompt begins."""
    end = prompt.rstrip()
    if end.endswith(tags.open):
        return Begin.INSIDE
    return Begin.BEHIND if end.endswith(tags.close) else Begin.BEFORE


def begin_of_whole(text: str, tags: ThoughtTags, begin: Begin) -> Begin:
    """Where a whole answer begins: inside, if it ends thoughts that nothing opened."""
    before, closed, _ = text.partition(tags.close)
    return Begin.INSIDE if begin is Begin.BEFORE and closed and tags.open not in before else begin


class ThoughtReader:
    """Takes the thoughts out of a text. White space around them is dropped.

    Tags count at the begin of an answer alone: one that is quoted in it later is content.
    """

    def __init__(self, tags: ThoughtTags, begin: Begin) -> None:
        self._tags = tags
        self._undecided = begin is not Begin.INSIDE
        self.thinking = begin is Begin.INSIDE
        self._held = ""
        self._told = self._closed = self._done = False

    def push(self, text: str) -> list[Piece]:
        if self._done:
            return [Content(text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        if self._undecided or (self.thinking and not self._told):
            self._skip_opening()
        if self.thinking:
            pieces += self._thoughts()
        if self._closed:
            self._held = self._held.lstrip()
            self._done = bool(self._held)
        if self._done and self._held:
            pieces.append(Content(self._held))
            self._held = ""
        return pieces

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self.thinking:
            text = held.rstrip() if self._told else held.strip()
            return [Thought(text)] if text else []
        return [Content(held)] if held and not self._closed else []

    def _skip_opening(self) -> None:
        """Pass over an opening tag; where the text cannot be one, it is content, if nothing opened thoughts before."""
        while (begun := self._held.lstrip()).startswith(self._tags.open):
            self._held, self._undecided, self.thinking = begun.removeprefix(self._tags.open), False, True
        if self._undecided and not self._tags.open.startswith(begun):
            self._undecided, self._done = False, True

    def _thoughts(self) -> list[Piece]:
        if not self._told:
            self._held = self._held.lstrip()
            # the prompt opened them, and the model may do so again
            if self._tags.open.startswith(self._held):
                return []
        text, closed, rest = self._held.partition(self._tags.close)
        if closed:
            self.thinking, self._closed, self._held = False, True, rest
            text = text.rstrip()
        else:
            end = certain(text, [self._tags.close])
            text, self._held = text[:end], text[end:]
        self._told = self._told or bool(text)
        return [Thought(text)] if text else []
