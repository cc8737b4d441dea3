"""What clients say of an answer's structure: OpenAI's ``response_format``, and vLLM's ``structured_outputs``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from spec_sdk.errors import ConstraintLimit
from spec_sdk.serve.faults import Refusal

Schema = dict[str, Any] | bool


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class NamedSchema(Strict):
    """``strict`` changes nothing: an answer is held to its schema in any case. ``name`` and ``description`` are passed
    over.
    """

    name: str | None = None
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")] = True
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's: ``json_schema`` only where that is the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[Text], Field(min_length=1)]


class StructuredOutputs(Strict):
    """vLLM's: one of the first five. ``json`` is a schema, or the text of one; ``grammar`` is in Lark's syntax."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None


class OlderNames(Strict):
    """What vLLM called some of ``structured_outputs`` before, and clients still do."""

    guided_json: Schema | str | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None


def outputs_of(older: OlderNames, outputs: StructuredOutputs | None) -> StructuredOutputs | None:
    """``structured_outputs`` by whichever name. Raises Refusal where both are given."""
    given = {name: value for name in OlderNames.model_fields if (value := getattr(older, name)) is not None}
    if given and outputs is not None:
        name = next(iter(given))
        raise Refusal(400, f"{name}: structured_outputs, its newer name, is given too; give one of the two", name)
    return StructuredOutputs(**{name.removeprefix("guided_"): given[name] for name in given}) if given else outputs


def constraint_of(format: ResponseFormat | None, outputs: StructuredOutputs | None) -> Mapping[str, Any] | None:
    """What the engine is asked for; None where nothing is. Raises Refusal."""
    formatted = format is not None and format.type != "text"
    asked = None if outputs is None else _of_outputs(outputs)
    if formatted and asked is not None:
        raise Refusal(
            400, "structured_outputs: response_format is given too; give one of the two", "structured_outputs"
        )
    if format is None or not formatted:
        if format is not None and format.json_schema is not None:
            raise Refusal(400, "response_format: json_schema is only for the type json_schema", "response_format")
        return asked
    if (format.json_schema is not None) != (format.type == "json_schema"):
        raise Refusal(400, "response_format: the type json_schema needs json_schema, and no other", "response_format")
    whitespace = "single" if outputs is not None and outputs.disable_any_whitespace else "any"
    return _schema(None if format.json_schema is None else format.json_schema.schema_, whitespace)


def _of_outputs(outputs: StructuredOutputs) -> Mapping[str, Any] | None:
    given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(outputs, name) is not None]
    given += ["json_object"] * (outputs.json_object is True)
    if len(given) > 1:
        names = " and ".join(name.rstrip("_") for name in given)
        raise Refusal(400, f"structured_outputs: {names} are given; give one", "structured_outputs")
    whitespace = "single" if outputs.disable_any_whitespace else "any"
    if outputs.json_ is not None:
        return _schema(_parsed(outputs.json_), whitespace)
    if outputs.json_object:
        return _schema(None, whitespace)
    if outputs.regex is not None:
        return {"name": "regex", "pattern": outputs.regex}
    if outputs.choice is not None:
        return {"name": "choice", "choices": outputs.choice}
    return None if outputs.grammar is None else {"name": "grammar", "text": outputs.grammar}


def _schema(schema: Schema | None, whitespace: str = "any") -> Mapping[str, Any]:
    # as a text: what stands in it is nothing to the library that merges options
    return {"name": "json_schema", "text": None if schema is None else json.dumps(schema), "whitespace": whitespace}


def _parsed(given: Schema | str) -> Schema:
    """A text is never taken for the name of a file."""
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"structured_outputs: json is no JSON text: {error}", "structured_outputs") from error
    if not isinstance(schema, dict | bool):
        raise Refusal(400, "structured_outputs: json must be a schema: an object, true or false", "structured_outputs")
    return schema


_OF_OUTPUTS = {"pattern": "regex", "choices": "choice", "text": "grammar", "schema": "json"}
_OF_FORMAT = {"text": "json_schema", "schema": "json_schema.schema"}
"""What constraints' options are called in requests."""


def asked_as(older: OlderNames, format: ResponseFormat | None) -> str:
    """The option that says what an answer's structure is."""
    given = [name for name in OlderNames.model_fields if getattr(older, name) is not None]
    if given:
        return given[0]
    return "response_format" if format is not None and format.type != "text" else "structured_outputs"


def refused_structure(message: str, name: str) -> Refusal | None:
    """The engine's refusal of a constraint by the ``name`` that asked for it; None for what it refuses besides."""
    if not message.startswith("constraint"):
        return None
    names = {"response_format": _OF_FORMAT, "tools": {}}.get(name, _OF_OUTPUTS)
    option, colon, rest = message.removeprefix("constraint").partition(":")
    own, dot, inside = option.removeprefix(".").partition(".")
    # an older name is that of the option itself
    kind = "" if not own or name.startswith("guided_") else f".{names.get(own, own)}"
    where = f"{name}{kind}{dot}{inside}"
    return Refusal(400, f"{where}{colon}{rest}", name)


def limit_reached(error: ConstraintLimit, name: str) -> Refusal:
    """What is told of an answer that came to a limit of its grammar's parser."""
    refusal = refused_structure(str(error), name)
    assert refusal is not None
    refusal.code = "constraint_limit"
    return refusal
