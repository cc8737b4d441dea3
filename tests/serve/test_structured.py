"""Answers with a structure over HTTP: OpenAI's response_format and vLLM's structured_outputs."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.pipelines.test_constrained import TOO_MANY_RULES
from tests.support.serving import MODEL, Served, post

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
CHAT: Any = [{"role": "user", "content": "Who?"}]


def asked(server: Served, path: str = "/v1/completions", **options: Any) -> tuple[int, Any]:
    body = {"prompt": "Who?"} if path == "/v1/completions" else {"messages": CHAT}
    status, reply = post(server.port, path, json.dumps({**body, "ignore_eos": False, **options}).encode())
    return status, json.loads(reply)


def is_person(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "age"] and len(value["name"]) <= 6 and 0 <= value["age"] <= 99


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_by_openais_client(stream: bool, client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": CHAT, "response_format": FORMAT, "max_tokens": 200, "temperature": 0}
    extra = {"ignore_eos": False, "structured_outputs": {"disable_any_whitespace": True}}
    if not stream:
        choice = client.chat.completions.create(**options, extra_body=extra).choices[0]
        assert choice.finish_reason == "stop" and is_person(choice.message.content or "")
        return
    text = ""
    for chunk in client.chat.completions.create(**options, stream=True, extra_body=extra):
        text += chunk.choices[0].delta.content or ""
    assert is_person(text)


def test_what_can_be_asked_for(server: Served) -> None:
    def text(**options: Any) -> str:
        status, reply = asked(server, max_tokens=150, **options)
        assert status == 200, reply
        found: str = reply["choices"][0]["text"]
        return found

    def outputs(**options: Any) -> dict[str, Any]:
        return {"structured_outputs": options}

    assert is_person(text(**outputs(json=SCHEMA, disable_any_whitespace=True)))
    assert is_person(text(**outputs(json=json.dumps(SCHEMA), disable_any_whitespace=True)))
    assert text(**outputs(choice=["yes", "no"])) in ("yes", "no")
    assert re.fullmatch(r"\d{3}-[ab]", text(**outputs(regex=r"\d{3}-[ab]")))
    assert re.fullmatch(r"<[a-c]{2}>", text(**outputs(grammar='start: "<" /[a-c]{2}/ ">"')))
    assert text(guided_json={"enum": [17]}, structured_outputs=None) == text(guided_json='{"enum": [17]}') == "17"
    assert text(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch("[ab]{3}", text(guided_regex="[ab]{3}"))
    assert re.fullmatch("<[a-c]{2}>", text(guided_grammar='start: "<" /[a-c]{2}/ ">"'))
    assert text(response_format={"type": "json_object"}, temperature=0).startswith("{")
    plain = text(temperature=0)
    assert plain == text(temperature=0, response_format={"type": "text"}) == text(temperature=0, **outputs())


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "keyword": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
        "response_format",
        "response_format.json_schema.schema: the keyword 'not' is not supported",
    ),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    "both types": (
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        "response_format",
        "needs json_schema, and no other",
    ),
    "text with a schema": (
        {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
        "response_format",
        "only for the type json_schema",
    ),
    "type": ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
    "both": (
        {"response_format": FORMAT, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "response_format is given too",
    ),
    "two": (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs",
        "regex and choice are given",
    ),
    "an older name": (
        {"structured_outputs": {"regex": "a"}, "guided_regex": "b"},
        "guided_regex",
        "guided_regex: structured_outputs, its newer name, is given too; give one of the two",
    ),
    "an older name's regex": ({"guided_regex": "("}, "guided_regex", "guided_regex: unclosed group"),
    "an older name's schema": (
        {"guided_json": {"items": {"not": {}}}},
        "guided_json",
        "guided_json.items: the keyword 'not' is not supported",
    ),
    "overlapping": (
        {"structured_outputs": {"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
        "structured_outputs",
        "structured_outputs.json: the members of a oneOf may overlap; use anyOf",
    ),
    "a list": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
        "response_format",
        "response_format.json_schema.schema: it must be a JSON Schema: an object, true or false",
    ),
    "an older name's list": ({"guided_json": [1]}, "guided_json", "guided_json: it must be a JSON Schema"),
    "single spaces": (
        {
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}},
            "structured_outputs": {"disable_any_whitespace": True},
        },
        "response_format",
        "response_format.json_schema.schema: the keyword 'not' is not supported",
    ),
    "an older name's value": ({"guided_choice": []}, "guided_choice", "guided_choice"),
    "two older names": ({"guided_choice": ["a"], "guided_regex": "b"}, "structured_outputs", "regex and choice"),
    "a file": ({"structured_outputs": {"json": "/etc/hostname"}}, "structured_outputs", "json is no JSON text"),
    "a number": ({"structured_outputs": {"json": "3"}}, "structured_outputs", "must be a schema"),
    "regex": (
        {"structured_outputs": {"regex": "("}},
        "structured_outputs",
        "structured_outputs.regex: unclosed group",
    ),
    "backslash": (
        {"structured_outputs": {"regex": "[a]\\"}},
        "structured_outputs",
        "structured_outputs.regex: it ends",
    ),
    "false": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
        "response_format",
        "response_format.json_schema.schema: false allows no answer",
    ),
    "large": ({"structured_outputs": {"regex": "a" * 300_000}}, "structured_outputs", "has 300000 characters"),
    "grammar": (
        {"structured_outputs": {"grammar": "start: b"}},
        "structured_outputs",
        "structured_outputs.grammar: at 1(8): unknown name",
    ),
    "number": (
        {"structured_outputs": {"json": {"properties": {"a": {"type": "integer", "minimum": 10**40}}}}},
        "structured_outputs",
        f"structured_outputs.json.properties.a.minimum: {str(10**40)[:40]}… must be between",
    ),
    "no choice": ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
    "deep": (
        {"structured_outputs": {"json": '{"items":' * 400 + "{}" + "}" * 400}},
        "structured_outputs",
        "structured_outputs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, server: Served) -> None:
    options, param, told = REFUSED[case]
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, reply = asked(server, path, **options)
        error = reply["error"]
        assert status == 400 and told in error["message"], error
        assert str(error["param"]).startswith(param.partition(".")[0])
        assert "\n" not in error["message"]


def test_a_limit_in_the_middle_of_an_answer(server: Served) -> None:
    """It is the request's own: status 400, or an error behind what was streamed, that says which limit."""
    options: Any = {"structured_outputs": {"grammar": TOO_MANY_RULES}, "max_tokens": 40, "temperature": 0}
    status, reply = asked(server, **options)
    assert status == 400 and reply["error"]["code"] == "constraint_limit", reply
    assert reply["error"]["param"] == "structured_outputs" and "max is 2000" in reply["error"]["message"]
    body = {"prompt": "Who?", "stream": True, **options}
    status, streamed = post(server.port, "/v1/completions", json.dumps(body).encode())
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.decode().splitlines() if line]
    assert status == 200 and events[-1]["error"]["code"] == "constraint_limit"
    assert "".join(event["choices"][0]["text"] for event in events[:-1])
    assert asked(server, structured_outputs={"choice": ["yes"]}, max_tokens=20)[0] == 200


def test_constrained_and_free_requests_beside_one_another(client: openai.OpenAI) -> None:
    """``n`` answers to a request differ in what they draw, and each has a matcher of its own."""
    extra = {"ignore_eos": False, "structured_outputs": {"choice": ["red", "green", "blue"]}}
    many = client.completions.create(
        model=MODEL, prompt=["a", "b"], n=4, max_tokens=20, temperature=1, seed=3, extra_body=extra
    )
    assert all(choice.text in ("red", "green", "blue") for choice in many.choices)
    assert len({choice.text for choice in many.choices}) > 1
