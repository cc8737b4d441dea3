"""Plugin classes of a program itself."""

from __future__ import annotations

from typing import TypeVar

from spec_sdk.plugin import Plugin
from spec_sdk.registry import Registry

PluginClass = TypeVar("PluginClass", bound=type[Plugin])


def register(plugin: PluginClass) -> PluginClass:
    """Offer a plugin class by its name to what this process makes from now on; returns it, so it decorates one too.

    A class of that kind and name which was registered before gives way, so that a notebook's cell can run again;
    engines that are made keep theirs. Other processes (a sweep's jobs, a command line) know nothing of it: a package
    is for that. Raises UserError for what is no valid plugin, or has the name of a plugin of a package.
    """
    Registry.discover().register_own(plugin)
    return plugin
