"""A plugin made of options as a run makes it: found by its name, its options checked."""

from __future__ import annotations

from typing import Any

from spec_sdk.registry import Registry


def config_of(kind: str, name: str, **options: Any) -> Any:
    """The config of a plugin. Raises UserError for options that are refused."""
    return Registry.discover().configure(kind, {"name": name, **options})[1]


def plugin_of(kind: str, name: str, **options: Any) -> Any:
    """The plugin itself, of a kind that is made of its config alone."""
    plugin: Any
    plugin, config = Registry.discover().configure(kind, {"name": name, **options})
    return plugin(config)
