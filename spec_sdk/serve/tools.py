"""What clients say of tools: the functions that a model may call, and whether it must."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from spec_sdk.errors import did_you_mean
from spec_sdk.serve.faults import Refusal
from spec_sdk.serve.reading.call_formats import CallFormat
from spec_sdk.serve.reading.forced_call import ForcedCall
from spec_sdk.serve.structured import Strict

Name = Annotated[str, Field(min_length=1, max_length=256)]


class Function(Strict):
    """``parameters``: a JSON Schema. ``strict`` changes nothing: calls that must come are held to it in any case, and
    others are not.
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: Name


class NamedTool(Strict):
    """A function that there is."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Strict):
    """Of the tools only these may be called (``auto``), or one of them must be (``required``)."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=1024)]


class SomeTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Literal["none", "auto", "required"] | NamedTool
ToolChoice = Choice | SomeTools
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def for_template(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates take them, with all that some of them look up."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": _parameters(tool.function),
            },
        }
        for tool in tools
    ]


def schemas_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """The functions by their names. Raises Refusal for two of one name."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(tools):
        if tool.function.name in schemas:
            raise Refusal(400, f"tools.{place}.function.name: another function has the same name", "tools")
        schemas[tool.function.name] = _parameters(tool.function)
    return schemas


def chosen(tools: Sequence[Tool], choice: ToolChoice | None) -> tuple[list[Tool], Choice | None]:
    """The tools that may be called, and whether one must be. Raises Refusal for a choice of what there is not."""
    if isinstance(choice, SomeTools):
        known = {tool.function.name for tool in tools}
        allowed = {_known(one, known) for one in choice.allowed_tools.tools} if tools else set()
        return [tool for tool in tools if tool.function.name in allowed], choice.allowed_tools.mode
    return [] if choice == "none" else list(tools), choice


def is_forced(choice: Choice | None) -> bool:
    """Whether a function must be called."""
    return choice == "required" or isinstance(choice, NamedTool)


def forced_call(
    choice: Choice, schemas: Mapping[str, Mapping[str, Any]], written: CallFormat | None
) -> tuple[CallFormat, Mapping[str, Any]]:
    """How an answer is written that must be a call, as ``tool_choice`` wants it, and the constraint that makes it one:
    a JSON object as the model writes them, without the marks around it.

    Raises Refusal where there is no such function, the model writes calls in a form that is no JSON, or a schema refers
    to a place that is none of its definitions.
    """
    if written is None or not written.is_json:
        message = "tool_choice: this model's calls are not JSON, so none can be forced; use auto"
        raise Refusal(400, message, "tool_choice", "unsupported_parameter")
    names = list(schemas)
    if isinstance(choice, NamedTool):
        names = [_known(choice, schemas)]
    calls = [_call(name, schemas[name], written.arguments) for name in names]
    definitions: dict[str, Any] = {}
    for name in names:
        for key in ("$defs", "definitions"):
            _merge(definitions, key, schemas[name].get(key), name)
    schema = {**definitions, **(calls[0] if len(calls) == 1 else {"anyOf": calls})}
    constraint = {"name": "json_schema", "text": json.dumps(schema), "whitespace": "single"}
    return ForcedCall(written.arguments), constraint


def _known(tool: NamedTool, names: Collection[str]) -> str:
    name = tool.function.name
    if name not in names:
        raise Refusal(400, f"tool_choice: no tool is called {name[:100]!r}{did_you_mean(name, names)}", "tool_choice")
    return name


def _call(name: str, schema: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    _check_references(schema, name)
    own = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, arguments: own},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _check_references(schema: Mapping[str, Any], name: str) -> None:
    """Within the schema of a call other places than definitions are not where a reference says."""
    rest: list[Any] = [schema]
    while rest:
        one = rest.pop()
        rest += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else []
        place = one.get("$ref") if isinstance(one, Mapping) else None
        if isinstance(place, str) and not place.startswith(("#/$defs/", "#/definitions/")):
            message = f"tools: {name[:100]!r} refers to {place[:100]!r}; only '#/$defs/…' is supported in a forced call"
            raise Refusal(400, message, "tools")


def _merge(definitions: dict[str, Any], key: str, given: Any, name: str) -> None:
    """Definitions stand at the root of a schema, where references look for them."""
    for own, schema in given.items() if isinstance(given, Mapping) else ():
        if definitions.setdefault(key, {}).setdefault(own, schema) != schema:
            message = f"tools: {own[:100]!r} of {name[:100]!r} is defined otherwise by another function"
            raise Refusal(400, message, "tools")


def _parameters(function: Function) -> Mapping[str, Any]:
    return function.parameters or NO_PARAMETERS
