"""Calls of tools in a section of their own, each with marks around its name and its arguments."""

from __future__ import annotations

import re
from abc import abstractmethod
from itertools import pairwise

from spec_sdk.serve.reading.call_formats import CallFormat, call_of, outside_texts, parsed
from spec_sdk.serve.reading.pieces import Call, Tools


class CallSection(CallFormat):
    """``section``: the marks around all calls; ``call``: those before one, between its name and its arguments, and
    behind it.
    """

    section: tuple[str, str]
    call: tuple[str, str, str]

    def __init__(self) -> None:
        begin, end = self.section
        self.opens, self.inner = (begin,), (*self.call, end)

    def end(self, body: str) -> int | None:
        place = next(outside_texts(body, self.section[1]), None)
        return None if place is None else place + len(self.section[1])

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        begin, between, end = self.call
        body = body.strip().removesuffix(self.section[1])
        places = [*outside_texts(body, begin), len(body)]
        before, found = body[: places[0]], []
        for part in (body[first + len(begin) : last] for first, last in pairwise(places)):
            text, closed, behind = part.rpartition(end)
            name, marked, arguments = text.partition(between)
            call = self._named(name.strip(), arguments) if closed and marked and not behind.strip() else None
            if call is None:
                return None
            found.append(call)
        return found if found and not before.strip() else None

    @abstractmethod
    def _named(self, name: str, arguments: str) -> Call | None:
        """A call by the texts on both sides of the mark between them; None for what is none."""


class DeepSeekCalls(CallSection):
    """DeepSeek-V3.1's; V3 and R1 write ``function`` in the place of the name, and that before the arguments, which are
    in a fence.
    """

    section = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    _fenced = re.compile(r"\s*([^\n`]+?)\s*```(?:json)?\s*\n(.*?)\n?```\s*", re.DOTALL)

    def _named(self, name: str, arguments: str) -> Call | None:
        fenced = self._fenced.fullmatch(arguments)
        return call_of(name, parsed(arguments)) if fenced is None else call_of(fenced[1], parsed(fenced[2]))


class KimiCalls(CallSection):
    """Kimi K2's, whose names are ``functions.name:number``."""

    section = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    _number = re.compile(r":\d+$")

    def _named(self, name: str, arguments: str) -> Call | None:
        return call_of(self._number.sub("", name).removeprefix("functions."), parsed(arguments))
