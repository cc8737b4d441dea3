"""Calls of tools whose texts stand between marks of their own, so that nothing in them is escaped."""

from __future__ import annotations

import re
from typing import Any

from spec_sdk.serve.reading.call_formats import CallFormat, call_of, ends_of, parsed
from spec_sdk.serve.reading.pieces import Call, Tools

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([^\s{}]+)\s*")
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
_LITERAL = re.compile(r"[^\s,{}\[\]]+")
_DEEPEST = 100
"""Of values within values."""


class QuotedCalls(CallFormat):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>``: Gemma 4's."""

    opens = ("<|tool_call>",)
    close = "<tool_call|>"
    inner = (close, _QUOTE)

    def end(self, body: str) -> int | None:
        # a text may have the mark in it
        return next((end for end in ends_of(body, self.close) if body.count(_QUOTE, 0, end) % 2 == 0), None)

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        text = body.strip().removesuffix(self.close)
        name = _NAME.match(text)
        if name is None:
            return None
        try:
            values = _Values(text, name.end())
            arguments = values.value()
        except ValueError:
            return None
        call = call_of(name[1], arguments) if not text[values.at :].strip() else None
        return None if call is None else [call]


class _Values:
    """Reads values from a place in a text on. Raises ValueError for what is none."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self.at, self._depth = text, at, 0

    def value(self) -> Any:
        self._skip()
        if self._takes(_QUOTE):
            return self._rest_of_text()
        if self._takes("{"):
            return dict(self._several("}", keyed=True))
        if self._takes("["):
            return [value for _, value in self._several("]", keyed=False)]
        found = _LITERAL.match(self._text, self.at)
        value = None if found is None else parsed(found[0])
        if found is None or (value is None and found[0] != "null"):
            raise ValueError("no value")
        self.at = found.end()
        return value

    def _several(self, close: str, keyed: bool) -> list[tuple[str, Any]]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("too deep")
        found: list[tuple[str, Any]] = []
        self._skip()
        while not self._takes(close):
            if found and not self._takes(","):
                raise ValueError("no comma")
            found.append((self._key() if keyed else "", self.value()))
            self._skip()
        self._depth -= 1
        return found

    def _key(self) -> str:
        self._skip()
        if self._takes(_QUOTE):
            key = self._rest_of_text()
            self._skip()
            if not self._takes(":"):
                raise ValueError("no colon")
            return key
        found = _KEY.match(self._text, self.at)
        if found is None:
            raise ValueError("no key")
        self.at = found.end()
        return found[1]

    def _rest_of_text(self) -> str:
        end = self._text.find(_QUOTE, self.at)
        if end < 0:
            raise ValueError("a text that does not end")
        text, self.at = self._text[self.at : end], end + len(_QUOTE)
        return text

    def _takes(self, mark: str) -> bool:
        found = self._text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def _skip(self) -> None:
        while self._text[self.at : self.at + 1].isspace():
            self.at += 1
