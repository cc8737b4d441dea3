"""Calls of tools: offered to the template, read in the answer, told in OpenAI's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.test_reasoning import ANALYSIS, CHANNELS
from tests.support.scripted_answers import END, HELLO, Scripted, added_up, as_added_up
from tests.support.serving import post

Begin = Callable[..., Scripted]
MESSAGES = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}
[{{ c.function.name }}{{ c.function.arguments | tojson }}#{{ c.id }}]{% endfor %}
{% if m.role == 'tool' %}#{{ m.tool_call_id }}{% endif %}{% endfor %}<assistant>"""
OFFERED = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
TAGGED = OFFERED + "{# <think> #}Write <tool_call> around calls." + MESSAGES
BARE = OFFERED + """{{ 'Write {"name": function name, "parameters": …}.' }}""" + MESSAGES
LIST = OFFERED + "[TOOL_CALLS]" + MESSAGES
VALUES = OFFERED + "Write <tool_call>name<arg_key>." + MESSAGES
SECTION = OFFERED + "{# <think> #}<｜tool▁calls▁begin｜>" + MESSAGES
DEEPSEEK_CALL = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 2}<｜tool▁call▁end｜>'
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
ADD, NOW = '{"name": "add", "arguments": {"a": 2}}', '{"name": "now", "arguments": {}}'
ONE: list[tuple[str, str]] = [("add", '{"a": 2}')]
BOTH = [*ONE, ("now", "{}")]

TOLD: dict[str, tuple[str, str, str, str, list[tuple[str, str]]]] = {
    "tagged": (TAGGED, f"<tool_call>\n{ADD}\n</tool_call>", "", "", ONE),
    "tagged, with all": (
        TAGGED,
        f"<think>Hm.</think>\nWell.\n<tool_call>{ADD}</tool_call>\n<tool_call>{NOW}</tool_call>",
        "Hm.",
        "Well.",
        BOTH,
    ),
    "no call": (TAGGED, "<tool_call>add</tool_call>", "", "<tool_call>add</tool_call>", []),
    "bare": (BARE, ADD.replace("arguments", "parameters"), "", "", ONE),
    "behind a special token": (BARE, f"<|python_tag|>{ADD}", "", "", ONE),
    "bare text": (BARE, '{"a": 2}', "", '{"a": 2}', []),
    "list": (LIST, f"[TOOL_CALLS][{ADD}, {NOW}]", "", "", BOTH),
    "a section": (SECTION, f"{DEEPSEEK_CALL}<｜tool▁calls▁end｜>", "", "", ONE),
    "a section, with all": (SECTION, f"<think>Hm.</think>Well.\n{DEEPSEEK_CALL}", "Hm.", "Well.", ONE),
    "another section": (
        OFFERED + "<|tool_calls_section_begin|>" + MESSAGES,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 2}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        "",
        ONE,
    ),
    "values": (VALUES, "<tool_call>add\n<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>", "", "", ONE),
    "channels": (
        CHANNELS,
        f'{ANALYSIS}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{"a": 2}}<|call|>',
        "Hm. So.",
        "",
        ONE,
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_whole_and_streamed(case: str, scripted: Begin) -> None:
    template, text, thoughts, content, calls = TOLD[case]
    server = scripted(template, text + END)
    reason = "tool_calls" if calls else "stop"
    expected = {"content": content, "reasoning_content": thoughts, "calls": calls, "finish_reason": reason}
    whole = server.whole(tools=TOOLS)
    assert as_added_up(whole) == added_up(server.chunks(tools=TOOLS)) == expected
    ids = [call.id for call in whole.choices[0].message.tool_calls or []]
    assert len(set(ids)) == len(calls) and all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in ids)
    several = server.chunks(tools=TOOLS, n=2)
    assert [added_up(several, index) for index in range(2)] == [expected] * 2
    first = as_added_up(server.whole(tools=TOOLS, parallel_tool_calls=False))
    assert first == {**expected, "calls": calls[:1]} == added_up(server.chunks(tools=TOOLS, parallel_tool_calls=False))


@pytest.mark.parametrize("case", [case for case in TOLD if not TOLD[case][2]])
def test_without_tools_nothing_is_looked_for(case: str, scripted: Begin) -> None:
    template, text, *_ = TOLD[case]
    server = scripted(template, text + END)
    tokenizer = server.server.service.engine.tokenizer
    plain = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    asked: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
    for options in asked:
        told = as_added_up(server.whole(**options))
        assert told == {"content": plain, "reasoning_content": "", "calls": [], "finish_reason": "stop"}
        assert "Adds." not in server.prompts[-1]


def test_thoughts_that_are_not_told_apart_beside_calls(scripted: Begin) -> None:
    for case, content in (("tagged, with all", "<think>Hm.</think>\nWell."), ("channels", "Hm. So.")):
        template, text, _, _, calls = TOLD[case]
        server = scripted(template, text + END, reasoning="none")
        told = as_added_up(server.whole(tools=TOOLS))
        assert told == added_up(server.chunks(tools=TOOLS))
        assert (told["content"], told["reasoning_content"], told["calls"]) == (content, "", calls)


def test_a_call_that_is_cut_off_is_content(scripted: Begin) -> None:
    server = scripted(TAGGED, f"<tool_call>{ADD}</tool_call>{END}")
    told = as_added_up(server.whole(tools=TOOLS, max_tokens=8))
    assert told == added_up(server.chunks(tools=TOOLS, max_tokens=8))
    assert told["finish_reason"] == "length" and told["content"].startswith("<tool_call>{") and not told["calls"]


def test_what_templates_are_offered(scripted: Begin) -> None:
    server = scripted(TAGGED, END)
    server.whole(tools=TOOLS)
    texts = server.prompts[-1].partition("Write")[0].replace("}{", "}\n{").splitlines()
    add, now = (json.loads(text)["function"] for text in texts)
    assert add == {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
    # of some templates nothing may be missing
    assert now == {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}
    server = scripted(TAGGED.replace("tools", "xml_tools"), END)
    server.whole(tools=TOOLS)
    assert "Adds." in server.prompts[-1]


def test_calls_and_results_can_be_sent_back(scripted: Begin) -> None:
    server = scripted(TAGGED, f"<tool_call>{ADD}</tool_call>{END}")
    message = server.whole(tools=TOOLS).choices[0].message
    assert message.tool_calls is not None
    name = message.tool_calls[0].id
    result = {"role": "tool", "content": "4", "tool_call_id": name}
    server.whole([*HELLO, message, result], tools=TOOLS)
    assert f'[add{{"a": 2}}#{name}]<tool>4#{name}<assistant>' in server.prompts[-1]
    # some templates write arguments as the texts that they are
    texts = TAGGED.replace("c.function.arguments | tojson", "'!' + c.function.arguments")
    server = scripted(texts, END)
    server.whole([*HELLO, message, result], tools=TOOLS)
    assert f'[add!{{"a": 2}}#{name}]' in server.prompts[-1]
    server = scripted(CHANNELS, END)
    again = {**message.model_dump(), "content": "Well.", "reasoning_content": "Hm."}
    server.whole([*HELLO, again], tools=TOOLS)
    assert "<|message|>[Hm.](add)" in server.prompts[-1], "gpt-oss takes thoughts or content beside a call"


def test_calls_are_content_where_templates_have_no_place_for_them(scripted: Begin) -> None:
    plain = OFFERED + "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for mark, text, expected in (
        ("<tool_call>", f"<tool_call>{ADD}</tool_call>\n<tool_call>{NOW}</tool_call>",
         f"<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>"),
        ("<|tool_call|>", f"<|tool_call|>[{ADD}, {NOW}]", f"<|tool_call|>[{ADD}, {NOW}]"),
    ):  # fmt: skip
        server = scripted(f"{{# {mark} #}}{plain}", f"Well.{text}{END}")
        message = server.whole(tools=TOOLS).choices[0].message
        assert len(message.tool_calls or []) == 2
        server.whole([*HELLO, message, {"role": "tool", "content": "4", "tool_call_id": "a"}], tools=TOOLS)
        assert f"<assistant>Well.\n{expected}<tool>4" in server.prompts[-1]
    odd: Any = [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]
    assert "has no place for tool_calls" in server.refused(odd, tools=TOOLS)["message"]


@pytest.mark.parametrize("template", [TAGGED, BARE, LIST])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_come(template: str, stream: bool, scripted: Begin) -> None:
    server = scripted(template, "")
    named: Any = {"type": "function", "function": {"name": "now"}}
    closed: Any = [*TOOLS[:1], {"type": "function", "function": {"name": "now", "parameters": {**PARAMETERS}}}]
    for choice, names in (("required", ("add", "now")), (named, ("now",))):
        asked: Any = {"tools": closed, "tool_choice": choice, "temperature": 1.0, "seed": 3}
        told = added_up(server.chunks(**asked)) if stream else as_added_up(server.whole(**asked))
        [(name, arguments)] = told["calls"]
        assert name in names and list(json.loads(arguments)) == ["a"] and 0 <= json.loads(arguments)["a"] <= 9
        assert (told["content"], told["finish_reason"]) == ("", "tool_calls")


def test_definitions_of_a_forced_call(scripted: Begin) -> None:
    digit = {"$defs": {"Digit": PARAMETERS["properties"]["a"]}, **PARAMETERS}
    own: Any = {"type": "function", "function": {"name": "own", "parameters": digit}}
    digit["properties"] = {"a": {"$ref": "#/$defs/Digit"}}
    server = scripted(TAGGED, "")
    [(name, arguments)] = as_added_up(server.whole(tools=[own, TOOLS[0]], tool_choice="required"))["calls"]
    assert name in ("own", "add") and 0 <= json.loads(arguments)["a"] <= 9
    other: Any = {"type": "function", "function": {"name": "other", "parameters": {"$defs": {"Digit": {}}}}}
    error = server.refused(tools=[own, other], tool_choice="required")
    assert error["param"] == "tools" and "'Digit' of 'other' is defined otherwise" in error["message"]
    digit["properties"] = {"a": {"$ref": "#/properties/b"}}
    assert "only '#/$defs/…'" in server.refused(tools=[own], tool_choice="required")["message"]


def test_a_call_that_must_come_and_is_cut_off(scripted: Begin) -> None:
    server = scripted(TAGGED, "")
    asked: Any = {"tools": TOOLS[:1], "tool_choice": "required", "temperature": 0}
    [(_, arguments)] = as_added_up(server.whole(**asked))["calls"]
    seen = set()
    for most in range(1, 60):
        told = as_added_up(server.whole(**asked, max_tokens=most))
        assert told == added_up(server.chunks(**asked, max_tokens=most)) and told["content"] == ""
        if told["finish_reason"] == "tool_calls":
            break
        assert told["finish_reason"] == "length"
        assert all(name == "add" and arguments.startswith(begun) for name, begun in told["calls"])
        seen.add(tuple(told["calls"]))
    assert told["calls"] == [("add", arguments)] and {(), (("add", ""),), (("add", '{"a":'),)} <= seen
    stopped = as_added_up(server.whole(**asked, stop='"a'))
    assert stopped["finish_reason"] == "stop", "nobody may take it for a whole call"


def test_some_tools_are_allowed(scripted: Begin) -> None:
    server = scripted(TAGGED, f"<tool_call>{NOW}</tool_call>{END}")
    now: Any = {"type": "function", "function": {"name": "now"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [now]}}
    told = as_added_up(server.whole(tools=TOOLS, tool_choice=allowed))
    assert told["calls"] == [("now", "{}")] and told["finish_reason"] == "tool_calls"
    assert '"now"' in server.prompts[-1] and "Adds." not in server.prompts[-1], "the model knows of these alone"
    allowed["allowed_tools"]["mode"] = "required"
    closed = [TOOLS[0], {"type": "function", "function": {"name": "now", "parameters": PARAMETERS}}]
    for stream in (False, True):
        options: Any = {"tools": closed, "tool_choice": allowed, "temperature": 1.0, "seed": 1}
        told = added_up(server.chunks(**options)) if stream else as_added_up(server.whole(**options))
        assert [name for name, _ in told["calls"]] == ["now"] and told["finish_reason"] == "tool_calls"


TOOL = {"type": "function", "function": {"name": "add"}}
NOWS = {"type": "function", "function": {"name": "nows"}}
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no place": (MESSAGES, {"tools": TOOLS}, "tools", "has no place for them"),
    "unknown form": (OFFERED + MESSAGES, {"tools": TOOLS}, "tools", "how this model writes calls is not known"),
    "no tool": (TAGGED, {"tools": [{}]}, "tools", "tools.0.type"),
    "another type": (TAGGED, {"tools": [{**TOOL, "type": "custom"}]}, "tools", "tools.0.type"),
    "no name": (TAGGED, {"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "tools.0.function.name"),
    "twice": (TAGGED, {"tools": [TOOL, TOOL]}, "tools", "tools.1.function.name: another function has the same name"),
    "required of none": (TAGGED, {"tool_choice": "required"}, "tool_choice", "it needs tools"),
    "unknown choice": (
        TAGGED,
        {"tools": TOOLS, "tool_choice": "any"},
        "tool_choice",
        "it must be none, auto, required",
    ),
    "unknown name": (
        TAGGED,
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "adds"}}},
        "tool_choice",
        "no tool is called 'adds', did you mean 'add'",
    ),
    "none allowed": (
        TAGGED,
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice",
        "it must be none, auto, required, a function like",
    ),
    "unknown allowed": (
        TAGGED,
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL, NOWS]}},
        },
        "tool_choice",
        "no tool is called 'nows', did you mean 'now'",
    ),
    "allowed of none": (
        TAGGED,
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}},
        "tool_choice",
        "it needs tools",
    ),
    "no JSON": (VALUES, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "use auto"),
    "channels": (CHANNELS, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "use auto"),
    "structure": (
        TAGGED,
        {"tools": TOOLS, "response_format": {"type": "json_object"}},
        "response_format",
        "tools are given too",
    ),
    "structured outputs": (TAGGED, {"tools": TOOLS, "guided_regex": "a"}, "guided_regex", "tools are given too"),
    "keyword": (
        TAGGED,
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
        "tools",
        "the keyword 'not' is not supported",
    ),
    "older": (TAGGED, {"functions": [{"name": "add"}]}, "functions", "it is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, scripted: Begin) -> None:
    template, options, param, told = REFUSED[case]
    error = scripted(template, END).refused(**options)
    assert error["param"] == param and told in error["message"], error


def test_parameters_are_clients_own(scripted: Begin) -> None:
    """Their names say nothing of options of the same name, and what no schema can say is no fault of the server."""
    server = scripted(TAGGED, f"Yes.{END}")
    odd: Any = {"type": "object", "properties": {"schema": 3, "content": {"type": ["x"]}}, "prompt": None}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": odd}}]
    body = json.dumps({"messages": HELLO, "tools": tools}).encode()
    assert post(server.server.port, "/v1/chat/completions", body)[0] == 200
    assert server.refused(tools=tools, tool_choice="required")["param"] == "tools"
