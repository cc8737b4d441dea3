"""What all kinds of plugin share: a name, options, and how the guarantees of parts add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

Random = float | torch.Generator
"""A random number of [0, 1), or the generator to take one from."""
Guarantee = Literal["exact", "distribution", "relaxed"]
GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "relaxed")


def weakest(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of a whole is the weakest of its parts': exact > distribution > relaxed."""
    return max(guarantees, key=GUARANTEES.index)


@dataclass
class NoOptions:
    """The config of a plugin that has no options."""


class Plugin:
    """What all kinds share. ``kind`` is set by the base class of each kind, ``name`` by the plugin."""

    kind: ClassVar[str]
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type] = NoOptions
