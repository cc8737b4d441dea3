"""Which types an option may have. OmegaConf, which checks values by them, knows fewer.

A ``Literal`` is merged as the type of its values, which become the option's choices, and a tuple as a list.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_sdk.config.option import Declared, declared_of
from spec_sdk.errors import UserError, first_line, in_a_line

SUPPORTED = (
    "str, int, float, bool, Path, an Enum, Literal['a', 'b'], Any, list[…], tuple[int, …], dict[str, …], a dataclass, "
    "and these or None"
)
NOT_VALID = "has a Config with a default that is not valid"
UNIONS = (types.UnionType, typing.Union)
RESERVED = "name"
"""Stands beside a plugin's options and says which plugin it is."""


@functools.lru_cache(maxsize=256)
def hints_of(config_class: type) -> dict[str, Any]:
    """The types of the options of a dataclass, by name."""
    return typing.get_type_hints(config_class)


@functools.lru_cache(maxsize=256)
def declared_options(config_class: type) -> dict[str, Declared]:
    """What is declared of each option of a dataclass, by its :func:`~spec_sdk.config.option.option` or its type."""
    hints = hints_of(config_class)
    found = {f.name: declared_of(f) for f in dataclasses.fields(config_class)}
    for name, declared in found.items():
        literals = [item for kind in members(hints[name]) for item in _literals(kind)]
        if literals and not declared.choices:
            found[name] = dataclasses.replace(declared, choices=tuple(literals))
    return found


@functools.lru_cache(maxsize=256)
def structured(config_class: type) -> Any:
    """The options of a dataclass with their defaults, as OmegaConf merges onto them. Not to be written to."""
    return _structured(config_class, [(f.name, _default(f)) for f in dataclasses.fields(config_class)])


def _structured(config_class: type, defaults: list[tuple[str, dict[str, Any]]]) -> Any:
    hints = hints_of(config_class)
    merged = [(name, _merged_as(hints[name]), dataclasses.field(**default)) for name, default in defaults]
    return OmegaConf.structured(dataclasses.make_dataclass(config_class.__name__, merged, kw_only=True))


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    made = field.default_factory is not dataclasses.MISSING
    return {"default_factory": field.default_factory} if made else {"default": field.default}


def as_declared(hint: Any, value: Any) -> Any:
    """A merged ``value`` with tuples where ``hint`` has them. Raises ValueError for one of another length."""
    inner = typing.get_args(hint)
    kind = typing.get_origin(hint) or hint
    if kind in UNIONS:
        # OmegaConf takes no container in a union, but for one beside None
        return value if value is None else as_declared(next(i for i in inner if i is not type(None)), value)
    if kind is tuple:
        items = inner[:1] * len(value) if not inner or inner[-1] is ... else inner
        if len(value) != len(items) and inner:
            raise ValueError(f"{value!r} must have {len(items)} values")
        return tuple(map(as_declared, items, value)) if inner else tuple(value)
    if kind is list and inner:
        return [as_declared(inner[0], item) for item in value]
    if kind is dict and inner:
        return {key: as_declared(inner[1], item) for key, item in value.items()}
    return value


def plain(value: Any) -> Any:
    """A default as YAML and JSON have it: a path is a text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def config_fault(config_class: type) -> str | None:
    """What makes a ``Config`` unusable, naming the field; None if nothing does. Every field has a default."""
    try:
        hints = hints_of(config_class)
    except Exception as error:  # annotations are a third party's code
        return f"has a Config whose annotations cannot be read: {in_a_line(error)}"
    if RESERVED in hints:
        return f"has a Config with a field {RESERVED!r}, which is reserved: it says which plugin is chosen"
    try:
        json.dumps(_container(structured(config_class)))
    except Exception:  # so is what makes a default
        return next(filter(None, (_field_fault(config_class, f) for f in dataclasses.fields(config_class))), None)
    defaults: Any = OmegaConf.to_container(structured(config_class), resolve=True)
    for name, default in defaults.items():
        try:
            declared_options(config_class)[name].check(name, default)
            as_declared(hints[name], default)
        except UserError as error:
            return f"{NOT_VALID}, {error}"
        except ValueError as error:
            return f"{NOT_VALID}, {name}: {error}"
    return None


def _field_fault(config_class: type, field: dataclasses.Field[Any]) -> str | None:
    refused = f"has a Config with the field {field.name!r} of type {type_name(hints_of(config_class)[field.name])}"
    try:
        _structured(config_class, [(field.name, {})])
    except (OmegaConfBaseException, TypeError):
        return f"{refused}, which is not supported; supported are {SUPPORTED}"
    try:
        default = _container(_structured(config_class, [(field.name, _default(field))]))
    except Exception as error:
        return f"{NOT_VALID}, {field.name}: {first_line(error)}"
    try:
        json.dumps(default)
    except (TypeError, ValueError):
        return f"{refused}, which is no plain data; supported are {SUPPORTED}"
    return None


def _container(options: Any) -> Any:
    return plain(OmegaConf.to_container(options, resolve=True, throw_on_missing=True, enum_to_str=True))


def type_name(hint: Any) -> str:
    """A type as code writes it, without the module of its name."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a union is of; of another type itself alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def _literals(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _merged_as(hint: Any) -> Any:
    """The type that OmegaConf is told of. Raises TypeError for one that it cannot hold values to."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        kinds = [kind for kind in inner if kind is not type(None)]
        if len(kinds) > 1 and any(map(_literals, kinds)):
            raise TypeError(f"{hint} has other values beside those of a Literal")
        return functools.reduce(operator.or_, map(_merged_as, inner))
    if origin is typing.Literal:
        return _one({type(value) for value in inner})
    if origin in (tuple, list, dict) and any(map(_literals, inner)):
        raise TypeError("choices are looked at of a whole option alone")
    if origin is tuple:
        return types.GenericAlias(list, (_one({_merged_as(item) for item in inner if item is not ...}),))
    if origin in (list, dict):
        return types.GenericAlias(origin, tuple(map(_merged_as, inner)))
    return hint


def _one(kinds: set[Any]) -> Any:
    if len(kinds) != 1:
        raise TypeError("values of several types")
    return kinds.pop()
