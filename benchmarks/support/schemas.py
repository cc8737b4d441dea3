"""Varied JSON schemas whose texts are of bounded length: what constrained decoding is tried on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

KEYS = (
    "name", "age", "colour", "größe", "price", "tags", "address", "active", "id", "notes", "名前", "e-mail", "level",
    "count", "owner", "kind", "due date", "unit",
)  # fmt: skip
WORDS = ("red", "green", "blue", "small", "large", "tō", "naïve", "ja", "nein", "snow ❄", 'say "hi"', "a\\b", "", "x y")
PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", "^v[0-9]{1,2}[.][0-9]{1,2}$")
FORMATS = ("date", "uuid", "ipv4", "time", "date-time")


def varied_schemas(count: int, seed: int = 0) -> list[Schema]:
    """So many schemas, each with objects, arrays, enums, patterns, formats, ranges, anyOf, oneOf, allOf, $ref, optional
    keys or names beyond ASCII; all of a kind occur from 40 or so on.
    """
    return [_schema(random.Random(seed * 100_003 + number)) for number in range(count)]


def _schema(rng: random.Random) -> Schema:
    schema = _object(rng, 2) if rng.random() < 0.8 else _any(rng, 2)
    if rng.random() < 0.3:
        shared = _leaf(rng)
        keys = rng.sample(KEYS, 2)
        schema = {
            "$defs": {"shared": shared},
            "type": "object",
            "properties": {keys[0]: {"$ref": "#/$defs/shared"}, keys[1]: _any(rng, 1)},
            "required": keys,
            "additionalProperties": False,
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "made up", **schema}


def _any(rng: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[], Schema]] = [lambda: _leaf(rng)] * 3
    if depth:
        kinds += [lambda: _object(rng, depth - 1), lambda: _array(rng, depth - 1), lambda: _either(rng, depth - 1)]
    return rng.choice(kinds)()


def _object(rng: random.Random, depth: int) -> Schema:
    keys = rng.sample(KEYS, rng.randint(1, 4))
    required = [key for key in keys if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": {key: _any(rng, depth) for key in keys},
        "required": required,
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    bounds = {"minItems": least, "maxItems": least + rng.randint(0, 2)}
    if rng.random() < 0.25:
        items = [_leaf(rng) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    return {"type": "array", "items": _any(rng, depth), **bounds}


def _either(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"anyOf": [_any(rng, depth), _leaf(rng)]}
    # of different types, so that no text is of both
    return {"oneOf": [_text(rng), _integer(rng), {"type": "null"}]}


def _leaf(rng: random.Random) -> Schema:
    return rng.choice([_text, _integer, _number, _fixed, _pattern, _format, _of_types, _both])(rng)


def _text(rng: random.Random) -> Schema:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 10)}


def _integer(rng: random.Random) -> Schema:
    least = rng.randint(-500, 400)
    bounds = {"minimum": least, "maximum": least + rng.randint(0, 1000)}
    if rng.random() < 0.3:
        bounds = {"exclusiveMinimum": least, "exclusiveMaximum": least + rng.randint(10, 1000)}
    return {"type": "integer", **bounds} | ({"multipleOf": 5} if rng.random() < 0.2 else {})


def _number(rng: random.Random) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": rng.randint(1, 100), "multipleOf": rng.choice([0.5, 0.25])}


def _fixed(rng: random.Random) -> Schema:
    if rng.random() < 0.3:
        return {"const": rng.choice([*WORDS, 7, True, None, [1, "two"], {"k": [None]}])}
    return {"enum": rng.sample([*WORDS, 1, 2.5, False, None], rng.randint(2, 5))}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS)}


def _format(rng: random.Random) -> Schema:
    return {"type": "string", "format": rng.choice(FORMATS)}


def _of_types(rng: random.Random) -> Schema:
    return {"type": rng.choice([["boolean", "null"], ["string", "null"], ["integer", "boolean"]])} | {
        "maxLength": 8,
        "minimum": -9,
        "maximum": 99,
    }


def _both(rng: random.Random) -> Schema:
    least = rng.randint(-9, 9)
    return {"allOf": [{"type": "integer", "minimum": least}, {"maximum": least + rng.randint(0, 200)}]}
