"""Calls of tools are found in every form that models write them in, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from spec_sdk.serve.reading.call_formats import (
    BareJson,
    CallFormat,
    FunctionTags,
    MarkedList,
    MistralCalls,
    TaggedJson,
    TaggedValues,
)
from spec_sdk.serve.reading.call_reader import CallReader
from spec_sdk.serve.reading.pieces import Call, Content, Piece, Tools
from tests.support.read_pieces import cuts, read

TOOLS: Tools = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
    "now": {"type": "object", "properties": {}},
}
JSON, VALUES, TAGS, BARE, MISTRAL = TaggedJson(), TaggedValues(), FunctionTags(), BareJson(), MistralCalls()
GRANITE = MarkedList("<|tool_call|>", "<|/tool_call|>")


def add(**arguments: Any) -> Call:
    return Call("add", json.dumps(arguments, ensure_ascii=False))


def one(arguments: str, name: str = "add", key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


TWO = one('{"a": 2}')
BOB = one("{}", "Bob")
NONE = one("{}")
ONE = one('{"a": 1}')
TAGGED_NOTE = one('{"note": "a\\"</tool_call>"}')
BROKEN_NOTE = one('{"note": "a\nb"}')
OTHER_NOTE = one('{"note": "ü\\u00e4"}')
TEXT = one(json.dumps('{"a": 2}'))
OTHER = one("{}", "other")
NUMBER = one("3")
NAN = one('{"a": NaN}')
PARAMETERS = one('{"a": 2}', key="parameters")


CASES: dict[str, tuple[CallFormat, str, list[Piece]]] = {
    "tagged": (JSON, f"<tool_call>\n{TWO}\n</tool_call>", [add(a=2)]),
    "two, with text": (
        JSON,
        f"Well.\n\n<tool_call>{NONE}</tool_call>\n<tool_call>{ONE}</tool_call>\n",
        [Content("Well."), add(), add(a=1)],
    ),
    "text behind": (JSON, f"<tool_call>{NONE}</tool_call>\nSo.", [add(), Content("\nSo.")]),
    "tag in an argument": (
        JSON,
        f"<tool_call>{TAGGED_NOTE}</tool_call>",
        [add(note='a"</tool_call>')],
    ),
    "line break in an argument": (JSON, f"<tool_call>{BROKEN_NOTE}</tool_call>", [add(note="a\nb")]),
    "other letters": (JSON, f"<tool_call>{OTHER_NOTE}</tool_call>", [add(note="üä")]),
    "arguments as a text": (JSON, f"<tool_call>{TEXT}</tool_call>", [add(a=2)]),
    "no arguments": (JSON, '<tool_call>{"name": "now"}</tool_call>', [Call("now", "{}")]),
    "unknown function": (JSON, f"<tool_call>{OTHER}</tool_call>", [Call("other", "{}")]),
    "not closed": (JSON, f"<tool_call>{NONE}", [add()]),
    "cut": (JSON, 'A <tool_call>{"name": "add", "ar', [Content('A <tool_call>{"name": "add", "ar')]),
    "no JSON": (JSON, "<tool_call>add(2)</tool_call> so", [Content("<tool_call>add(2)</tool_call> so")]),
    "no call, then one": (
        JSON,
        f"<tool_call>[]</tool_call>\n<tool_call>{NONE}</tool_call>",
        [Content("<tool_call>[]</tool_call>"), add()],
    ),
    "arguments that are none": (
        JSON,
        f"<tool_call>{NUMBER}</tool_call>",
        [Content(f"<tool_call>{NUMBER}</tool_call>")],
    ),
    "no number": (
        JSON,
        f"<tool_call>{NAN}</tool_call>",
        [Content(f"<tool_call>{NAN}</tool_call>")],
    ),
    "no tag": (JSON, " Use <tool> or \n", [Content(" Use <tool> or \n")]),
    "bare": (BARE, one('{"a": 2}', key="parameters"), [add(a=2)]),
    "bare, behind a tag": (BARE, f"<|python_tag|>{PARAMETERS}", [add(a=2)]),
    "bare, two": (BARE, f"{ONE}; {TWO}\n", [add(a=1), add(a=2)]),
    "bare, with text": (BARE, f"I call.\n{NONE}", [Content(f"I call.\n{NONE}")]),
    "bare, of no function": (BARE, BOB, [Content(BOB)]),
    "bare, no call": (BARE, ' {"a": 1}', [Content(' {"a": 1}')]),
    "bare, cut": (BARE, '{"name": "add', [Content('{"name": "add')]),
    "a list": (MISTRAL, f"[TOOL_CALLS][{ONE}, {NONE}]", [add(a=1), add()]),
    "a list behind text": (MISTRAL, f"Well. [TOOL_CALLS] [{NONE}]", [Content("Well."), add()]),
    "a list, cut": (MISTRAL, f"[TOOL_CALLS][{NONE},", [Content(f"[TOOL_CALLS][{NONE},")]),
    "an empty list": (MISTRAL, "[TOOL_CALLS][]", [Content("[TOOL_CALLS][]")]),
    "name and arguments": (
        MISTRAL,
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}',
        [add(a=1), Call("now", "{}")],
    ),
    "name and no arguments": (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a"', [Content('[TOOL_CALLS]add[ARGS]{"a"')]),
    "Granite's": (GRANITE, f"<|tool_call|>[{ONE}]", [add(a=1)]),
    "Phi's": (GRANITE, f"<|tool_call|>[{ONE}]<|/tool_call|>", [add(a=1)]),
    "values": (
        VALUES,
        "\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n"
        "<arg_key>note</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        [add(a=2, note="2")],
    ),
    "values without lines": (
        VALUES,
        "<tool_call>add<arg_key>b</arg_key><arg_value>x y</arg_value>"
        "<arg_key>c</arg_key><arg_value>[1]</arg_value></tool_call>",
        [add(b="x y", c=[1])],
    ),
    "no values": (VALUES, "<tool_call>now\n</tool_call>", [Call("now", "{}")]),
    "tag in a value": (
        VALUES,
        "<tool_call>add<arg_key>note</arg_key><arg_value>a</tool_call></arg_value></tool_call>",
        [add(note="a</tool_call>")],
    ),
    "null": (VALUES, "<tool_call>add<arg_key>a</arg_key><arg_value>null</arg_value></tool_call>", [add(a=None)]),
    "no pairs": (VALUES, "<tool_call>add<arg_key>a</tool_call>", [Content("<tool_call>add<arg_key>a</tool_call>")]),
    "no name": (VALUES, "<tool_call></tool_call>", [Content("<tool_call></tool_call>")]),
    "parameters": (
        TAGS,
        "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=note>\nx\ny\n</parameter>\n</function>\n</tool_call>",
        [add(a=2, note="x\ny")],
    ),
    "no parameters": (TAGS, "<tool_call><function=now></function></tool_call>", [Call("now", "{}")]),
    "tag in a parameter": (
        TAGS,
        "<tool_call><function=add><parameter=note></tool_call></parameter></function></tool_call>",
        [add(note="</tool_call>")],
    ),
    "no function": (TAGS, "<tool_call>a</tool_call>b", [Content("<tool_call>a</tool_call>b")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_text(case: str) -> None:
    format, text, pieces = CASES[case]
    assert read(CallReader(format, TOOLS), [text]) == pieces
    assert read(CallReader(format, TOOLS), text) == pieces


WHOLE = "<tool_call><function=now></function></tool_call>"
FRAGMENTS: dict[str, tuple[CallFormat, list[str]]] = {
    "tagged": (JSON, [f"<tool_call>{NONE}</tool_call>", "<tool_call>", "</tool_call>", NONE, '{"name": "add", ']),
    "bare": (BARE, ["<|python_tag|>", one("{}"), one('{"a": 1}'), ";"]),
    "list": (MISTRAL, ["[TOOL_CALLS]", "[ARGS]", f"[{NONE}]", "add", "{}"]),
    "values": (VALUES, ["<tool_call>", "</tool_call>", "<arg_key>a</arg_key>", "<arg_value>1</arg_value>", "add"]),
    "tags": (
        TAGS,
        ["<tool_call>", "</tool_call>", "<function=add>", "</function>", "<parameter=a>1</parameter>", WHOLE],
    ),
}


@pytest.mark.parametrize("case", FRAGMENTS)
def test_cuts_change_nothing(case: str) -> None:
    format, fragments = FRAGMENTS[case]
    called = False

    @given(texts=cuts(fragments))
    @settings(deadline=None, derandomize=True, database=None, max_examples=400)
    def check(texts: list[str]) -> None:
        nonlocal called
        pieces = read(CallReader(format, TOOLS), texts)
        assert pieces == read(CallReader(format, TOOLS), ["".join(texts)])
        calls = [piece for piece in pieces if isinstance(piece, Call)]
        called = called or bool(calls)
        for call in calls:
            assert isinstance(json.loads(call.arguments), dict)
        if not calls:
            assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == "".join(texts)

    check()
    assert called, "no text had a call"


def test_content_is_told_at_once() -> None:
    reader = CallReader(JSON, TOOLS)
    told = [reader.push(text) for text in ("Well", ". <to", "ol", "_call>", one("{}"), "</tool_call>")]
    assert told == [[Content("Well")], [Content(".")], [], [], [], [add()]]
