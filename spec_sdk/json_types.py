"""Values of JSON as the annotations of a dataclass have them."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
KINDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


class WrongType(Exception):
    """``value`` is no ``kind``. It may be an item of the value that was to be converted."""

    def __init__(self, value: Any, kind: Any) -> None:
        super().__init__(value, kind)
        self.value = value
        self.kind = kind


def converted(value: Any, kind: Any) -> Any:
    """``value`` as an annotation: a plain type, ``Any``, ``Literal``, a list, sequence, tuple or mapping of such, a
    dataclass, or one of these ``| None``. Tuples are lists in JSON, and keys that are whole numbers are texts.

    Raises :class:`WrongType`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        # of several types only None may be the other one
        [known] = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else converted(value, known)
    if origin is Literal:
        return _if(value in arguments, value, kind)
    if origin in (list, Sequence):
        return [converted(item, arguments[0]) for item in _if(isinstance(value, list), value, list)]
    if origin is tuple:
        return _tuple(value, kind, arguments)
    if origin in (dict, Mapping):
        items = _if(isinstance(value, dict), value, dict).items()
        return {_key(key, arguments[0]): converted(item, arguments[1]) for key, item in items}
    if dataclasses.is_dataclass(kind):
        return _nested(value, kind)
    if kind is float and type(value) is int:
        return float(value)
    return _if(type(value) is kind, value, kind)


def dataclass_of(kind: type[T], data: Mapping[str, Any], read: Callable[[str, Any], Any]) -> T:
    """A dataclass of what ``read`` gives for its fields' names and annotations.

    A field that ``data`` lacks has its default, where it has one.
    """
    hints = _hints(typing.cast(Hashable, kind))
    values = {
        field.name: read(field.name, hints[field.name])
        for field in dataclasses.fields(typing.cast(Any, kind))
        if field.name in data or field.default is field.default_factory is dataclasses.MISSING
    }
    return kind(**values)


def may_be_none(kind: Any) -> bool:
    """Whether an annotation ends in ``| None``."""
    return types.NoneType in typing.get_args(kind)


def in_words(kind: Any) -> str:
    """What a value of this type is, after "not"."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if set(arguments) == {int}:
            return f"{len(arguments)} whole numbers"
        return f"{', '.join(map(in_words, arguments[:-1]))} and {in_words(arguments[-1])}"
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if dataclasses.is_dataclass(kind):
        return f"an object of {', '.join(field.name for field in dataclasses.fields(kind))}"
    return KINDS.get(kind, str(kind))


def _if(fits: bool, value: Any, kind: Any) -> Any:
    if not fits:
        raise WrongType(value, kind)
    return value


def _tuple(value: Any, kind: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """As a whole right or wrong: one of its items says little."""
    try:
        if isinstance(value, list) and len(value) == len(arguments):
            return tuple(converted(item, argument) for item, argument in zip(value, arguments, strict=True))
    except WrongType:
        pass
    raise WrongType(value, kind)


def _key(key: str, kind: Any) -> Any:
    if kind is not int:
        return key
    return int(_if(key.isdecimal(), key, int))


def _nested(value: Any, kind: Any) -> Any:
    _if(isinstance(value, dict), value, kind)
    return dataclass_of(kind, value, lambda name, of: converted(value.get(name), of))


@functools.cache
def _hints(kind: Hashable) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)
