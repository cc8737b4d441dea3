"""What all kinds of plugin share: a name and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar

import torch

Random = float | torch.Generator
"""A random number of [0, 1), or the generator to take one from."""


@dataclass
class NoOptions:
    """The config of a plugin that has no options."""


class Plugin:
    """What all kinds share. ``kind`` is set by the base class of each kind, ``name`` by the plugin. A plugin made of
    another one has the ``aliases`` that it says, and none of the other's.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type] = NoOptions
    parts: ClassVar[Mapping[str, str]] = {}
    """Options that choose plugins of other kinds, option → kind; the options of those stand beside this one's own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        not_inherited(cls, "aliases", Plugin.aliases, ["name"])


def not_inherited(cls: type, name: str, default: object, describes: Collection[str]) -> None:
    """Of a class that changes one of the methods that ``name`` describes, and does not say ``name`` itself: it has the
    ``default``, for what its base says of them is no longer true. For ``__init_subclass__``.
    """
    if name not in vars(cls) and not vars(cls).keys().isdisjoint(describes):
        setattr(cls, name, default)


def declared(plugin: Plugin) -> dict[str, Any]:
    """A plugin's name and options as plain data, for whoever carries out by other means what it does."""
    config = getattr(plugin, "config", None)
    options = asdict(config) if is_dataclass(config) and not isinstance(config, type) else {}
    return {"name": plugin.name, **options}
