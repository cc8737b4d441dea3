"""What all kinds of plugin share: a name and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

Random = float | torch.Generator
"""A random number of [0, 1), or the generator to take one from."""


@dataclass
class NoOptions:
    """The config of a plugin that has no options."""


class Plugin:
    """What all kinds share. ``kind`` is set by the base class of each kind, ``name`` by the plugin."""

    kind: ClassVar[str]
    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type] = NoOptions
    parts: ClassVar[Mapping[str, str]] = {}
    """Options that choose plugins of other kinds, option → kind; the options of those stand beside this one's own."""
