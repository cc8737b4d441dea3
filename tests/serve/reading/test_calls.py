"""Calls of tools are found in every form that models write them in, however the text is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.reading.answer_format import AnswerFormat, call_format_of, thought_tags_of
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
from spec_sdk.serve.reading.call_sections import DeepSeekCalls, KimiCalls
from spec_sdk.serve.reading.pieces import Call, Content, Piece, Thought, Tools
from spec_sdk.serve.reading.python_calls import PythonCalls
from spec_sdk.serve.reading.quoted_calls import QuotedCalls
from spec_sdk.serve.reading.thoughts import Begin
from tests.support.read_pieces import cuts, read
from tests.support.tiny_checkpoints import tiny_tokenizer

TOOLS: Tools = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
    "now": {"type": "object", "properties": {}},
    "look-up": {"type": "object", "properties": {}},
}
JSON, VALUES, TAGS, BARE, MISTRAL = TaggedJson(), TaggedValues(), FunctionTags(), BareJson(), MistralCalls()
GRANITE = MarkedList("<|tool_call|>", "<|/tool_call|>")
DEEPSEEK, KIMI, PYTHON, QUOTED = DeepSeekCalls(), KimiCalls(), PythonCalls(), QuotedCalls()


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


def deepseek(*calls: str) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def quoted(arguments: str, name: str = "add") -> str:
    return f"<|tool_call>call:{name}{arguments}<tool_call|>"


def python(text: str) -> str:
    return f"<|tool_call_start|>{text}<|tool_call_end|>"


NAMELESS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
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
    "a section": (
        DEEPSEEK,
        deepseek('add<｜tool▁sep｜>{"a": 1}', "now<｜tool▁sep｜>{}"),
        [add(a=1), Call("now", "{}")],
    ),
    "a section behind text": (
        DEEPSEEK,
        "Well.\n" + deepseek("now<｜tool▁sep｜>{}"),
        [Content("Well."), Call("now", "{}")],
    ),
    "a section, in a fence": (
        DEEPSEEK,
        deepseek('function<｜tool▁sep｜>add\n```json\n{"a": 2}\n```', "function<｜tool▁sep｜>now\n```json\n{}\n```"),
        [add(a=2), Call("now", "{}")],
    ),
    "a section, its mark in an argument": (
        DEEPSEEK,
        deepseek('add<｜tool▁sep｜>{"note": "<｜tool▁calls▁end｜>"}'),
        [add(note="<｜tool▁calls▁end｜>")],
    ),
    "a section, not closed": (
        DEEPSEEK,
        deepseek("now<｜tool▁sep｜>{}").removesuffix("<｜tool▁calls▁end｜>"),
        [Call("now", "{}")],
    ),
    "a section, cut": (
        DEEPSEEK,
        deepseek()[:-20] + "<｜tool▁call▁begin｜>add",
        [Content(deepseek()[:-20] + "<｜tool▁call▁begin｜>add")],
    ),
    "a section, empty": (DEEPSEEK, deepseek(), [Content(deepseek())]),
    "a section, no JSON": (DEEPSEEK, deepseek("add<｜tool▁sep｜>2"), [Content(deepseek("add<｜tool▁sep｜>2"))]),
    "Kimi's": (
        KIMI,
        "So: <|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        [Content("So:"), add(a=1), Call("now", "{}")],
    ),
    "Kimi's, no name": (KIMI, NAMELESS, [Content(NAMELESS)]),
    "as Python": (PYTHON, python("[add(a=1, note='x'), now()]"), [add(a=1, note="x"), Call("now", "{}")]),
    "as Python, then text": (PYTHON, python("[now()]") + "I look.", [Call("now", "{}"), Content("I look.")]),
    "as Python, one alone": (
        PYTHON,
        python('add(note="it\'s", a=[1, {"b": None}])'),
        [add(note="it's", a=[1, {"b": None}])],
    ),
    "as Python, JSON's names": (PYTHON, python("[add(a=true, b=null, c=-1.5)]"), [add(a=True, b=None, c=-1.5)]),
    "as Python, the mark in a text": (
        PYTHON,
        python('[add(note="<|tool_call_end|>")]'),
        [add(note="<|tool_call_end|>")],
    ),
    "as JSON there": (PYTHON, python(f"[{ONE}]"), [add(a=1)]),
    "as Python, not closed": (PYTHON, "<|tool_call_start|>[now()]", [Call("now", "{}")]),
    "as Python, run": (PYTHON, python('[add(a=open("x"))]'), [Content(python('[add(a=open("x"))]'))]),
    **{
        f"as Python, no JSON: {value}": (PYTHON, python(f"[add(a={value})]"), [Content(python(f"[add(a={value})]"))])
        for value in ('b"x"', "{1, 2}", "...", "1 + 2j", "{(1, 2): 3}", "{[1]: 2}", "1e999")
    },
    "as Python, no name": (PYTHON, python("[(lambda: 1)()]"), [Content(python("[(lambda: 1)()]"))]),
    "as Python, a name": (PYTHON, python("[add(a=secret)]"), [Content(python("[add(a=secret)]"))]),
    "as Python, by place": (PYTHON, python("[add(1)]"), [Content(python("[add(1)]"))]),
    "as Python, no call": (PYTHON, python("[1, 2]"), [Content(python("[1, 2]"))]),
    "as Python, cut": (PYTHON, "<|tool_call_start|>[add(a=", [Content("<|tool_call_start|>[add(a=")]),
    "as Python, a hyphen": (PYTHON, python("[look-up(a='look-up(1)')]"), [Call("look-up", '{"a": "look-up(1)"}')]),
    "as Python, an escape": (PYTHON, python(r'[add(note="\d")]'), [add(note="\\d")]),
    "a section, a call's mark in an argument": (
        DEEPSEEK,
        deepseek('add<｜tool▁sep｜>{"note": "<｜tool▁call▁begin｜>"}'),
        [add(note="<｜tool▁call▁begin｜>")],
    ),
    "quoted": (
        QUOTED,
        "Well." + quoted('{a:1,note:<|"|>x, {"y": \'}<|"|>}') + quoted("{}", "now"),
        [Content("Well."), add(a=1, note='x, {"y": \'}'), Call("now", "{}")],
    ),
    "quoted, values in values": (
        QUOTED,
        quoted('{ a : {b:[1, -2.5e1,true,null,[]],<|"|>c d<|"|>:<|"|><|"|>} }'),
        [add(a={"b": [1, -25.0, True, None, []], "c d": ""})],
    ),
    "quoted, the mark in a text": (QUOTED, quoted('{note:<|"|><tool_call|>}<|"|>}'), [add(note="<tool_call|>}")]),
    "quoted, then text": (QUOTED, quoted("{}", "look-up") + "So.", [Call("look-up", "{}"), Content("So.")]),
    "quoted, not closed": (QUOTED, "<|tool_call>call:now{}", [Call("now", "{}")]),
    **{
        f"quoted, no call: {text}": (QUOTED, text, [Content(text)])
        for text in (
            '<|tool_call>call:add{note:<|"|>x',
            "<|tool_call>call:add{a:1",
            *(
                quoted(each)
                for each in ("", "{a:1 b:2}", "{a}", "{a:b}", "{a:1}}", "[1]", "3", '{<|"|>a<|"|>}', "{a:,}")
            ),
            quoted("{a:" + "[" * 200 + "]" * 200 + "}"),
            "<|tool_call>add{}<tool_call|>",
        )
    },
    "as Python, deep": (PYTHON, python("[" * 500), [Content(python("[" * 500))]),
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
    "quoted": (QUOTED, ["<|tool_call>", "<tool_call|>", "call:add{", '<|"|>', "a:1", "}", quoted("{}")]),
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


def test_forms_that_templates_do_not_show_are_found_by_their_tokens(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    for tokens, found in (((), None), (("<|tool_call_start|>", "<|tool_call_end|>"), PythonCalls)):
        tokenizer.add_special_tokens(list(tokens))
        (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
        (tmp_path / "chat_template.jinja").write_text("List of tools: {{ tools | tojson }}")
        format = call_format_of(Tokenizer(tmp_path, tokenizer.get_vocab_size()))
        assert (format and type(format)) is found


def test_a_gemma_4_is_known_by_its_template(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(["<|channel>", "<channel|>", "<|tool_call>"])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    template = "{{ '<|tool_call>call:' + tools }}{{ '<|channel>thought\n<channel|>' }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    known = Tokenizer(tmp_path, tokenizer.get_vocab_size())
    assert isinstance(call_format_of(known), QuotedCalls)
    tags = thought_tags_of(known)
    assert tags is not None and len(known.special_ids(tags.marks)) == 2
    reader = AnswerFormat(True, tags, Begin.BEFORE, calls=QUOTED, tools=TOOLS).reader()
    said = "<|channel>thought\nHm.\n<channel|>" + quoted("{a:1}")
    assert read(reader, said) == [Thought("Hm."), add(a=1)]


def test_calls_as_python_are_written_as_they_are_read() -> None:
    calls = [add(a=None, note='it\'s "x"', c=[True, 1.5]), Call("now", "{}")]
    assert read(CallReader(PYTHON, TOOLS), [PYTHON.written(calls)]) == calls
    others = [Call("look-up", "{}"), add(**{"a-b": 1})]
    assert read(CallReader(PYTHON, TOOLS), [PYTHON.written(others)]) == others
