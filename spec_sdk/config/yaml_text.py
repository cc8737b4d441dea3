"""YAML that people read and copy, written from what options are declared to be."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from spec_sdk.config.option import as_yaml
from spec_sdk.option_types import declared_options
from spec_sdk.options import describe_options
from spec_sdk.registry import Offer, Registry, summary_of

WIDTH = 120
COMMENT_COLUMN = 25
"""Comments of shorter lines begin here."""


@dataclass(frozen=True)
class Line:
    """An option in a file of YAML: its name, its value and the comment on it."""

    name: str
    value: Any
    comment: str = ""


def own_lines(config_class: type) -> list[Line]:
    """The options of a dataclass with their defaults."""
    declared = declared_options(config_class)
    return [
        Line(option["name"], option["default"], declared[option["name"]].comment())
        for option in describe_options(config_class)
    ]


def plugin_yaml(offer: Offer, registry: Registry) -> str:
    """The file of a plugin: its options, and those that its parts from the same package may have."""
    plugin = offer.plugin
    lines: list[Line] = []
    for line in own_lines(plugin.Config):
        lines.append(line)
        kind = plugin.parts.get(line.name)
        if kind is not None:
            parts = [part for part in registry.offers(kind) if part.package == offer.package]
            lines += _lines_of_parts(line.name, parts)
    return f"# {summary_of(plugin)}\nname: {plugin.name}\n{options_yaml(lines)}"


def options_yaml(lines: Iterable[Line], indent: str = "") -> str:
    """``name: value  # comment``, a comment that is too long for the line in lines of its own before it."""
    return "".join(textwrap.indent(_written(line, WIDTH - len(indent)), indent) for line in lines)


def _written(line: Line, width: int) -> str:
    nested = isinstance(line.value, Mapping) or (
        isinstance(line.value, list) and any(isinstance(item, Mapping) for item in line.value)
    )
    if nested:
        block: str = yaml.safe_dump({line.name: line.value}, sort_keys=False, allow_unicode=True)
        return _above(line.comment, width) + block.replace("\n- ", "\n  - ")
    stated = f"{line.name}: {as_yaml(line.value)}"
    if not line.comment:
        return f"{stated}\n"
    beside = f"{stated.ljust(COMMENT_COLUMN - 2)}  # {line.comment}"
    return f"{beside}\n" if len(beside) <= width else f"{_above(line.comment, width)}{stated}\n"


def _above(comment: str, width: int) -> str:
    return "".join(f"# {part}\n" for part in textwrap.wrap(comment, width - 2, break_on_hyphens=False))


def _lines_of_parts(option: str, offers: Sequence[Offer]) -> list[Line]:
    """The options of the plugins that ``option`` chooses from, each once, told whose they are if not everybody's."""
    owners: dict[str, list[str]] = {}
    lines: dict[str, Line] = {}
    for offer in offers:
        for line in own_lines(offer.plugin.Config):
            known = lines.setdefault(line.name, line)
            if known != line:
                raise ValueError(f"{offer.plugin.name}.{line.name} is another option than {known}")
            owners.setdefault(line.name, []).append(offer.plugin.name)
    everybody = [offer.plugin.name for offer in offers]
    return [
        line
        if owners[name] == everybody
        else Line(name, line.value, f"{option}={'|'.join(owners[name])}: {line.comment}")
        for name, line in lines.items()
    ]
