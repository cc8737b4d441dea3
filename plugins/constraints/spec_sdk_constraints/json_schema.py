"""Answers that are JSON, by a schema or of any kind."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.contracts import Constraint, Matcher, option
from spec_sdk.errors import UserError
from spec_sdk.files import expanded, read_text
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk_constraints.llguidance_grammars import check_installed, check_one_given, check_size, matcher_of
from spec_sdk_constraints.schema_keywords import check_keywords, schemas_in
from spec_sdk_constraints.schema_numbers import check_numbers

OBJECT = {"type": "object"}
"""The schema of any JSON object."""
WHITESPACE: Mapping[str, Mapping[str, Any]] = {
    "any": {"whitespace_flexible": True},
    "single": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "none": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
}


@dataclass
class JsonSchemaConfig:
    """Options of ``constraint=json_schema``."""

    schema: Any = option(None, "a JSON file with a JSON Schema, or the schema itself", means={None: "any JSON object"})
    text: str | None = option(None, "the schema as a JSON text, in place of schema")
    whitespace: str = option(
        "any",
        "between the parts of the JSON text",
        choices={
            "any": "as much as the model likes",
            "single": "one space after : and , as json.dumps writes it; more of a text then has no alternative",
            "none": "",
        },
    )


class JsonSchemaConstraint(Constraint):
    """JSON texts that a JSON Schema describes.

    A schema with a keyword that cannot be kept to is refused. Where the schema has ``properties`` they come in its
    order.
    """

    name = "json_schema"
    Config = JsonSchemaConfig
    config: JsonSchemaConfig

    def __init__(self, config: JsonSchemaConfig) -> None:
        super().__init__(config)
        check_one_given("schema", config.schema, config.text)
        given = config.schema is not None or config.text is None
        self._schema = _read(config.schema) if given else _normal(config.text or "", "constraint.text")

    @property
    def key(self) -> Hashable:
        return self.config.whitespace, self._schema

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        check_installed(self.name)
        from llguidance import LLMatcher

        check_size(self._schema, "constraint.schema")
        try:
            schema = json.loads(self._schema)
            if schema is False:
                raise UserError("constraint.schema: false allows no answer at all")
            check_keywords(schema, "constraint.schema")
            check_numbers(schemas_in(schema, "constraint.schema"))
        except RecursionError as error:
            raise UserError("constraint.schema: it is nested too deeply") from error
        # a schema cannot change how it is read
        overrides: Any = {**WHITESPACE[self.config.whitespace], "lenient": False, "coerce_one_of": False}
        given = "{}" if schema is True else self._schema

        def make() -> str:
            return LLMatcher.grammar_from_json_schema(given, overrides=overrides)

        return matcher_of(make, tokenizer, vocabulary, "constraint.schema", "the JSON schema")


def _read(given: Any) -> str:
    """The schema as a JSON text."""
    if given is None:
        return json.dumps(OBJECT)
    if isinstance(given, Mapping | bool):
        try:
            return json.dumps(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"constraint.schema: it is no JSON: {error}") from error
    if not isinstance(given, str) or not given.strip():
        raise UserError(f"constraint.schema: {given!r} must be a file with a JSON Schema, or the schema itself")
    path: Path = expanded(given, "constraint.schema")
    return _normal(read_text(path, f"constraint.schema: {path}:"), f"constraint.schema: {path}")


def _normal(text: str, where: str) -> str:
    check_size(text, where)
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: it is no JSON: {error}") from error
