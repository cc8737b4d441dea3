"""JSON that a run left: objects of a file or of its lines, with a clear message for what is not as it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import read_text
from spec_sdk.json_types import WrongType, converted, dataclass_of, in_words, may_be_none

T = TypeVar("T")


@dataclass(frozen=True)
class JsonObject:
    """An object of a file. ``where``: the file, and the line, for errors."""

    where: str
    data: Mapping[str, Any]

    def get(self, key: str, kind: type[T]) -> T:
        """The field ``key`` as an annotation says (:func:`spec_sdk.json_types.converted`).

        Raises UserError if it is missing, null or of another type.
        """
        value = self.maybe(key, kind)
        if value is None:
            raise UserError(f"{self.where}: {'null is no value of' if key in self.data else 'there is no'} '{key}'")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The same; None where it is missing or null."""
        value: Any = self.data.get(key)
        if value is None:
            return None
        try:
            found: T = converted(value, kind)
        except WrongType as wrong:
            is_or_has = "is" if wrong.value is value else "has"
            raise UserError(
                f"{self.where}: '{key}' {is_or_has} {json.dumps(wrong.value)[:60]}, not {in_words(wrong.kind)}"
            ) from None
        return found

    def typed(self, kind: type[T]) -> T:
        """The object as a dataclass; other keys are passed over, and fields that are missing have their defaults.

        Raises UserError for a field without one that is missing, and for one of another type.
        """
        return dataclass_of(kind, self.data, self._field)

    def _field(self, key: str, kind: Any) -> Any:
        return self.maybe(key, kind) if may_be_none(kind) else self.get(key, kind)

    def part(self, key: str) -> JsonObject:
        """The object under ``key``."""
        return JsonObject(f"{self.where}, {key}", self.get(key, dict))

    def parts(self, key: str) -> list[JsonObject]:
        """The objects of the list under ``key``."""
        found: list[Any] = self.get(key, list)
        return [_object(f"{self.where}, {key} {i}", item) for i, item in enumerate(found, start=1)]


def read_object(path: Path) -> JsonObject:
    """The one object of a JSON file. Raises UserError."""
    try:
        return _object(str(path), json.loads(read_text(path, str(path))))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON: {message_of(error)[:120]}") from error


@dataclass
class Lines:
    """The objects of a file, one a line. ``torn``: the last line was cut off, as by a kill, and is left out."""

    path: Path
    torn: bool = False

    def __iter__(self) -> Iterator[JsonObject]:
        """Raises UserError, which has the line's number, for a line that is no JSON object."""
        text = read_text(self.path, str(self.path))
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{self.path} line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == len(lines):
                    # a whole line ends in a line break
                    self.torn = True
                    return
                raise UserError(f"{where}: no JSON: {message_of(error)[:120]}") from error
            yield _object(where, value)


def _object(where: str, value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise UserError(f"{where}: {json.dumps(value)[:60]} is no JSON object")
    return JsonObject(where, value)
