"""Typed reading of a JSON object, so that a wrong value is one clear line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.files import read_text, shortened


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises UserError if it cannot be read, is not JSON, or is not an object."""
    text = read_text(path, f"{path}:")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


LARGEST = 2.0**63


class Fields:
    """A JSON object whose values are checked as they are read. ``where`` names it in errors.

    A key that is missing or null has its default; without a default that is an error. All methods raise UserError for a
    value of the wrong type or range.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, key: str) -> Any:
        """The value as it stands, None if missing."""
        return self.values.get(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, of at most 2^63."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise UserError(f"{self.where}: no {key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        if not abs(value) <= LARGEST:
            raise self._wrong(key, "a number that fits in 64 bits")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self.number(key, default)
        if value <= 0:
            raise self._wrong(key, "a positive number")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.positive(key, default)
        if value != int(value):
            raise self._wrong(key, "a whole number")
        return int(value)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number, maybe 0."""
        value = self.number(key, default)
        if value < 0 or value != int(value):
            raise self._wrong(key, "a whole number of 0 or more")
        return int(value)

    def size_or_none(self, key: str, default: int) -> int | None:
        """A size; None where it is null (``default`` where it is missing)."""
        return None if key in self.values and self.values[key] is None else self.size(key, default)

    def size_if_any(self, key: str) -> int | None:
        """A size; None where it is null or missing."""
        return None if self.values.get(key) is None else self.size(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def section(self, key: str) -> Fields:
        """A nested object."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object")
        return Fields(value, f"{self.where}, {key}")

    def token_ids(self, key: str, vocabulary: int | None = None) -> tuple[int, ...]:
        """One token id, a list of them, or none. Ids that the vocabulary does not have are left out."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise self._wrong(key, "a token id or a list of them")
        # some configs say -1 for none, or name an id past the end: neither can ever be produced
        return tuple(token for token in ids if token >= 0 and (vocabulary is None or token < vocabulary))

    def _wrong(self, key: str, wanted: str) -> UserError:
        return UserError(f"{self.where}: {key} is {shortened(repr(self.values.get(key)))}, not {wanted}")
