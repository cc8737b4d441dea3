"""Calls of tools in the text of an answer."""

from __future__ import annotations

from spec_sdk.serve.reading.call_formats import CallFormat
from spec_sdk.serve.reading.pieces import Content, HoldingReader, Piece, Tools
from spec_sdk.serve.reading.tags import certain, first_of


class CallReader(HoldingReader):
    """Takes calls out of a text. What does not parse as a call is content, marks and all; white space before a call,
    and behind the last, is dropped.
    """

    thinking = False

    def __init__(self, format: CallFormat, tools: Tools) -> None:
        super().__init__()
        self._format, self._tools = format, tools
        self._bare = format.bare
        # the white space and the mark before what is held, once there is a mark
        self._mark: str | None = None
        self._called = False

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._mark is not None:
            return self._read(held)
        return [Content(held)] if held.strip() or (held and not self._called) else []

    def _goes_on(self, pieces: list[Piece]) -> bool:
        if self._mark is not None:
            end = self._format.end(self._held)
            if end is not None:
                body, self._held = self._held[:end], self._held[end:]
                pieces += self._read(body)
            return end is not None
        if self._bare:
            begun = self._held.lstrip()
            if begun.startswith("{"):
                self._mark, self._held = self._held[: len(self._held) - len(begun)], begun
                return True
            self._bare = not begun
        found = first_of(self._held, self._format.opens)
        end = certain(self._held if found is None else self._held[: found[0]], self._format.opens if not found else ())
        if end:
            pieces.append(Content(self._held[:end]))
        if found is not None:
            behind = found[0] + len(found[1])
            self._mark, self._held = self._held[end:behind], self._held[behind:]
        else:
            self._held = self._held[end:]
        return found is not None

    def _read(self, body: str) -> list[Piece]:
        mark, self._mark, self._bare = self._mark or "", None, False
        calls = self._format.calls(body, self._tools)
        self._called = self._called or calls is not None
        return [Content(mark + body)] if calls is None else list(calls)
