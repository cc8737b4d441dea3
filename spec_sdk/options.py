"""Options of a plugin: its typed dataclass, YAML merged onto it, and both described for people."""

from __future__ import annotations

import copy
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_sdk.config.option import any_of
from spec_sdk.errors import UserError, did_you_mean, first_line
from spec_sdk.option_types import as_declared, declared_options, hints_of, members, plain, structured, type_name

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
MOST_PLACES = 3
"""Of a name that stands in more places than this none is proposed."""
LISTED = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths", dict: "{option: value}"}


def merge_options(
    config_class: type, options: Mapping[str, Any], where: str, owner: str, others: Collection[str] = ()
) -> Any:
    """Return an instance of the dataclass ``config_class`` with ``options`` put over its defaults.

    ``where`` is the option path before each key (``drafter``, or "" at the top level), ``owner`` what an unknown
    option is said to be unknown to (``drafter 'easyspec'``), ``others`` what else it could have been meant to be.
    Interpolations are resolved already: a ``${`` is text.
    Raises UserError for an unknown option, a wrong type or a value that is declared not to be valid.
    """
    fields = declared_options(config_class)
    try:
        # all at once, and into the defaults themselves: a merge that keeps them copies them first
        merged: Any = OmegaConf.unsafe_merge(
            _defaults(config_class), {key: literal(value) for key, value in options.items()}
        )
    except OmegaConfBaseException:
        merged = _merged_one_by_one(config_class, fields, _defaults(config_class), options, where, owner, others)
    try:
        typed = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        # a text with a ${ for an option that is no text
        key = str(error.full_key)
        raise UserError(f"{f'{where}.{key}' if where else key}: {options[key]!r} is of the wrong type") from error
    assert isinstance(typed, dict)
    for key in options:
        fields[key].check(f"{where}.{key}" if where else str(key), typed[key])
    values = {}
    for key, hint in hints_of(config_class).items():
        path = f"{where}.{key}" if where else key
        try:
            value = merged[key]
            values[key] = as_declared(hint, OmegaConf.to_object(value) if OmegaConf.is_config(value) else value)
        except OmegaConfBaseException as error:
            raise UserError(f"{where or owner}: {first_line(error)}") from error
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
    return config_class(**values)


def _defaults(config_class: type) -> Any:
    # making them of the dataclass takes three times as long
    return copy.deepcopy(structured(config_class))


def _merged_one_by_one(
    config_class: type,
    fields: Collection[str],
    merged: Any,
    options: Mapping[str, Any],
    where: str,
    owner: str,
    others: Collection[str],
) -> Any:
    """``merged`` with ``options`` put over it in their order. Raises UserError for the first that does not fit."""
    for key, value in options.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in fields:
            hint = did_you_mean(str(key), {*fields, *others}) if fields or others else " (it has no options)"
            raise UserError(f"{path}: unknown option of {owner}{hint}")
        try:
            merged = OmegaConf.merge(merged, {key: literal(value)})
        except OmegaConfBaseException as error:
            raise UserError(f"{path}: {_why(error, config_class, str(key), value)}") from error
    return merged


def paths_to(key: str, config: Mapping[Any, Any]) -> list[str]:
    """The dotted paths of the options of ``config`` called ``key``, its own not among them; none if there are many."""
    found = list(_paths(key, config, ""))
    return found if len(found) <= MOST_PLACES else []


def _paths(key: str, node: Mapping[Any, Any], path: str) -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            if key in value:
                yield f"{path}{name}.{key}"
            yield from _paths(key, value, f"{path}{name}.")


def literal(value: Any) -> Any:
    """``value`` so that OmegaConf takes every ``${`` in its texts for two characters and not for an interpolation."""
    if isinstance(value, str):
        # the backslashes right before ${ are doubled, and one more makes it no interpolation
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, Mapping):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value


def _why(error: OmegaConfBaseException, config_class: type, key: str, value: Any) -> str:
    hint = hints_of(config_class)[key]
    lists = [member for member in members(hint) if _is_listing(member)]
    words = [WORDS[member] for member in members(hint) if member in WORDS]
    words += [f"a list of {_listed(typing.get_args(member)[0])}" for member in lists]
    # an error inside a value is told as it is, but for lists, where OmegaConf names its own classes
    if words and (lists or error.full_key in (key, None, "")):
        return f"{value!r} is not {' or '.join(words)}"
    return first_line(error)


def _in_words(hint: Any) -> str:
    """A type for people: ``whole number or null``; "" of one that says nothing."""
    words = [
        f"list of {_listed(typing.get_args(kind)[0])}" if _is_listing(kind) else _word(kind) for kind in members(hint)
    ]
    return any_of([word for word in words if word]) if all(words) else ""


def _is_listing(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, tuple)


def _word(kind: Any) -> str:
    return "null" if kind is type(None) else WORDS.get(kind, "").removeprefix("a ")


def _listed(item: Any) -> str:
    """What a list of ``item`` is a list of."""
    kind = typing.get_origin(item) or item
    return f"lists of {_listed(typing.get_args(item)[0])}" if _is_listing(item) else LISTED.get(kind, "values")


def key_of(error: BaseException) -> str | None:
    """The option path that an OmegaConf error is about, which it tells at times only in its text."""
    match = re.search(r"^\s*full_key: (\S+)$", str(error), flags=re.MULTILINE)
    return match[1] if match else None


def describe_options(config_class: type) -> list[dict[str, Any]]:
    """One entry per option: ``name``, ``type``, ``default`` (as YAML has it), ``valid`` values and ``doc``, in words.

    See :func:`spec_sdk.config.option.option`.
    """
    hints = hints_of(config_class)
    defaults = plain(OmegaConf.to_container(structured(config_class), enum_to_str=True))
    described = []
    for name, declared in declared_options(config_class).items():
        kind = "" if declared.choices else _in_words(hints[name])
        described.append(
            {
                "name": name,
                "type": type_name(hints[name]),
                "default": defaults[name],
                "valid": ", ".join(part for part in (kind, declared.valid()) if part),
                "doc": declared.meaning(),
            }
        )
    return described
