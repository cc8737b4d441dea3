"""The channels of gpt-oss's answers ("harmony")."""

from __future__ import annotations

import re

from spec_sdk.serve.reading.call_formats import call_of, parsed
from spec_sdk.serve.reading.pieces import Content, HoldingReader, Piece, Thought
from spec_sdk.serve.reading.tags import begun, first_of

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyReader(HoldingReader):
    """Reads messages ``<|start|>assistant<|channel|>…<|message|>…<|end|>``, of which the prompt began the first.

    The channel ``analysis`` is thoughts; what is sent to a function is a call, if ``calls`` are asked for and its
    arguments are JSON; all else is content. Several texts of a kind have a line break between them.
    """

    def __init__(self, calls: bool) -> None:
        super().__init__()
        self._calls = calls
        self._header: str | None = None
        self._in_header = self._first = True
        self._told: set[type[Thought] | type[Content]] = set()
        self._fresh = True

    @property
    def thinking(self) -> bool:
        return not self._in_header and self._kind is Thought

    @property
    def _kind(self) -> type[Thought] | type[Content]:
        return Thought if f"{CHANNEL}analysis" in (self._header or "") else Content

    @property
    def _function(self) -> str | None:
        """Who is called by the message that goes on."""
        found = RECIPIENT.search(self._header or "") if self._calls else None
        return None if found is None else found[1]

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [] if self._in_header else self._body(held)

    def _goes_on(self, pieces: list[Piece]) -> bool:
        if self._in_header:
            return self._read_header()
        found = first_of(self._held, (*ENDS, START, CHANNEL))
        if found is not None:
            body, self._held = self._held[: found[0]], self._held[found[0] :]
            pieces += self._body(body)
            self._in_header = True
            return True
        if self._function is None:
            end = len(self._held) - begun(self._held, MARKS)
            text, self._held = self._held[:end], self._held[end:]
            pieces += self._text(text)
        return False

    def _read_header(self) -> bool:
        if self._first and not self._may_be_header():
            # no channel was begun: the answer is a text like other
            self._first = self._in_header = False
            return True
        header, found, rest = self._held.partition(MESSAGE)
        if not found:
            return False
        self._header, self._held = header, rest
        self._first = self._in_header = False
        self._fresh = True
        return True

    def _may_be_header(self) -> bool:
        held = self._held.lstrip()
        return any(held.startswith(one[: len(held)]) for one in (*MARKS, "to="))

    def _body(self, text: str) -> list[Piece]:
        """The rest of a message, or all of it if it calls a function."""
        if self._function is None:
            return self._text(text)
        call = call_of(self._function, parsed(text) if text.strip() else {})
        return self._text(text) if call is None else [call]

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        kind = self._kind
        between = "\n" if self._fresh and kind in self._told else ""
        self._told.add(kind)
        self._fresh = False
        return [kind(between + text)]
