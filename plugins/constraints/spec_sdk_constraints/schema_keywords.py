"""JSON Schema keywords: which are kept to, which only describe, and the places of a schema that are schemas too.

llguidance refuses the keywords of JSON Schema that it knows and does not keep to, and passes over all others, as the
standard wants it. A misspelt keyword would then allow what it was to forbid; so all that are neither are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec_sdk.errors import UserError, did_you_mean

ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "deprecated",
        "readOnly",
        "writeOnly",
        "examples",
        "$comment",
        "$id",
        "$schema",
        "$anchor",
        "$defs",
        "definitions",
        "discriminator",
    ]
)
"""Keywords that allow and forbid nothing."""
KEPT_TO = frozenset(
    [
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "format",
        "maxItems",
        "minItems",
        "prefixItems",
        "items",
        "additionalItems",
        "maxProperties",
        "minProperties",
        "required",
        "properties",
        "patternProperties",
        "additionalProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
    ]
)
REFUSED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "nullable",
    ]
)
"""Keywords that forbid something, and that an answer could not be held to."""
ONE = ("items", "additionalProperties", "additionalItems")
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")


def check_keywords(schema: Any, where: str) -> None:
    """Raise UserError for the first keyword anywhere in a schema that an answer could not be held to."""
    for place, one in schemas_in(schema, where):
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise UserError(f"{place}: {str(one)[:80]!r} must be a schema: an object, true or false")
        for keyword in one:
            if keyword in REFUSED:
                raise UserError(f"{place}: the keyword '{keyword}' is not supported")
            if keyword not in ANNOTATIONS and keyword not in KEPT_TO and not keyword.startswith("x-"):
                raise UserError(f"{place}: unknown keyword '{keyword[:80]}'{did_you_mean(keyword, sorted(KEPT_TO))}")
            if keyword == "x-guidance":
                raise UserError(f"{place}: x-guidance would change how a schema is read; leave it out")


def schemas_in(schema: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Every schema inside a schema, itself included, and where it stands."""
    yield where, schema
    if not isinstance(schema, dict):
        return
    for keyword in ONE:
        inner = schema.get(keyword)
        # an array of schemas is what prefixItems was called before
        if isinstance(inner, dict | bool):
            yield from schemas_in(inner, f"{where}.{keyword}")
    for keyword in (*SEVERAL, "items"):
        if isinstance(listed := schema.get(keyword), list):
            for i, inner in enumerate(listed):
                yield from schemas_in(inner, f"{where}.{keyword}[{i}]")
    for keyword in NAMED:
        if isinstance(named := schema.get(keyword), dict):
            for name, inner in named.items():
                yield from schemas_in(inner, f"{where}.{keyword}.{name}")
