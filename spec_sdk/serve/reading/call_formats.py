"""The forms in which models write calls of tools."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from spec_sdk.serve.reading.pieces import Call, Tools

DECODER = json.JSONDecoder(strict=False)
"""Models break lines within texts."""
STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


class CallFormat(ABC):
    """How a model writes calls.

    ``opens``: what stands before one. ``inner``: marks within one, which may be special tokens as ``opens`` may.
    ``bare``: whether an answer that begins with ``{`` is a call without a mark. ``is_json``: whether a call is a JSON
    object, which an answer can be held to, with its ``arguments`` under this name.
    """

    opens: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare = False
    is_json = False
    arguments = "arguments"

    def end(self, body: str) -> int | None:
        """Where the text behind a mark is a whole call; None where it is none yet, or only the answer's end tells."""
        return None

    @abstractmethod
    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        """The calls of a text behind a mark; None if it is none, and content."""

    def written(self, calls: Sequence[Call]) -> str | None:
        """Calls as the model writes them; None where only its chat template can."""
        return None


class BareJson(CallFormat):
    """``{"name": …, "parameters": {…}}``, several with ``;`` between them, maybe behind ``<|python_tag|>``: Llama 3's.

    As any answer may begin with ``{``, only functions that there are count.
    """

    opens = ("<|python_tag|>",)
    bare = is_json = True

    def __init__(self, arguments: str = "parameters") -> None:
        self.arguments = arguments

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        found, rest = list[Any](), body.strip()
        try:
            while rest:
                value, end = DECODER.raw_decode(rest)
                found.append(value)
                rest = rest[end:].lstrip(" \r\n\t;")
        except (ValueError, RecursionError):
            return None
        calls = calls_of(found)
        return calls if calls and all(call.name in tools for call in calls) else None


class TaggedJson(CallFormat):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes', and so Qwen's and many others'."""

    opens = ("<tool_call>",)
    close = "</tool_call>"
    inner = (close,)
    is_json = True

    def end(self, body: str) -> int | None:
        place = next(outside_texts(body, self.close), None)
        return None if place is None else place + len(self.close)

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        return calls_of(parsed(body.removesuffix(self.close)))

    def written(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"<tool_call>\n{json_of(call)}\n</tool_call>" for call in calls)


class MarkedList(CallFormat):
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` up to the end of the answer: Mistral's, and with other marks
    Granite's and Phi's.
    """

    is_json = True

    def __init__(self, mark: str, close: str | None = None) -> None:
        self.opens, self._close = (mark,), close
        self.inner = () if close is None else (close,)

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        return calls_of(parsed(body.strip().removesuffix(self._close or "")))

    def written(self, calls: Sequence[Call]) -> str:
        return f"{self.opens[0]}[{', '.join(map(json_of, calls))}]"


class MistralCalls(MarkedList):
    """Mistral's, whose newer models write ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

    def __init__(self) -> None:
        super().__init__("[TOOL_CALLS]")
        self.inner = ("[ARGS]", "[CALL_ID]")

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        if "[ARGS]" not in body:
            return super().calls(body, tools)
        found = []
        for call in body.split(self.opens[0]):
            name, _, arguments = call.partition("[ARGS]")
            found.append({"name": name.partition("[CALL_ID]")[0].strip(), "arguments": arguments})
        return calls_of(found)


class TaggedValues(CallFormat):
    """``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``: GLM's.

    Values are texts where the function's schema says so, else JSON.
    """

    opens = ("<tool_call>",)
    inner = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
    _pair = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)

    def end(self, body: str) -> int | None:
        # a value may have the tag in its text
        for end in ends_of(body, "</tool_call>"):
            if body.count("<arg_value>", 0, end) == body.count("</arg_value>", 0, end):
                return end
        return None

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        body = body.removesuffix("</tool_call>")
        name, mark, rest = body.partition("<arg_key>")
        return _valued_calls(name.strip(), f"{mark}{rest}", self._pair, tools)


class FunctionTags(CallFormat):
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``: Qwen 3 Coder's, and with
    other outer tags Seed-OSS'. Values are as :class:`TaggedValues`.
    """

    _function = re.compile(r"\s*<function=([^>]*)>(.*?)</function>\s*", re.DOTALL)
    _pair = re.compile(r"\s*<parameter=([^>]*)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)

    def __init__(self, open: str = "<tool_call>", close: str = "</tool_call>") -> None:
        self.opens, self._close, self.inner = (open,), close, (close,)

    def end(self, body: str) -> int | None:
        # a value may have the tag in its text
        for end in ends_of(body, self._close):
            if body.count("<function=", 0, end) <= body.count("</function>", 0, end):
                return end
        return None

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        found = self._function.fullmatch(body.removesuffix(self._close))
        return None if found is None else _valued_calls(found[1].strip(), found[2].strip(), self._pair, tools)


def calls_of(value: Any) -> list[Call] | None:
    """Calls that were parsed as JSON: an object for each, or a list of them. None for what is none."""
    calls = []
    for one in value if isinstance(value, list) else [value]:
        name = one.get("name") if isinstance(one, dict) else None
        arguments = one.get("arguments", one.get("parameters")) if isinstance(one, dict) else None
        # some models write the arguments as the text of a JSON text
        arguments = parsed(arguments) if isinstance(arguments, str) else {} if arguments is None else arguments
        call = call_of(name, arguments)
        if call is None:
            return None
        calls.append(call)
    return calls or None


def call_of(name: Any, arguments: Any) -> Call | None:
    """A call with parsed arguments; None for what is none."""
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        return Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None


def parsed(text: str) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def json_of(call: Call) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


def _valued_calls(name: str, text: str, pair: re.Pattern[str], tools: Tools) -> list[Call] | None:
    """A call whose arguments are pairs of a key and a text."""
    if any(mark in name for mark in "<>\n") or pair.sub("", text).strip():
        return None
    schemas = tools.get(name, {}).get("properties")
    schemas = schemas if isinstance(schemas, dict) else {}
    call = call_of(name, {key.strip(): _valued(value, schemas.get(key.strip())) for key, value in pair.findall(text)})
    return None if call is None else [call]


def _valued(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    value = parsed(text)
    return text if value is None and text.strip() != "null" else value


def outside_texts(body: str, mark: str) -> Iterator[int]:
    """Where this mark begins, each time but where a JSON text has it within it."""
    texts = [match.span() for match in STRING.finditer(body)]
    for end in ends_of(body, mark):
        place = end - len(mark)
        if not any(first < place < last for first, last in texts):
            yield place


def ends_of(body: str, close: str) -> Iterator[int]:
    """Where this tag ends in a text, each time."""
    place = body.find(close)
    while place >= 0:
        yield place + len(close)
        place = body.find(close, place + 1)
