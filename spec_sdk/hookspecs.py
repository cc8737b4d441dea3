"""The hooks that a plugin package may implement. Found through the entry-point group ``spec_sdk``.

A package that offers plugins needs one function and one line of its pyproject.toml::

    # mine/__init__.py                                # pyproject.toml
    from spec_sdk.hookspecs import hookimpl           [project.entry-points."spec_sdk"]
                                                      mine = "mine"
    @hookimpl                                         "conf.mine" = "mine.conf"
    def spec_sdk_plugins():
        from mine.drafter import Mine

        return [Mine]

``conf.mine``, if there is YAML, names the package that holds it (``mine/conf/drafter/mine.yaml``). It is read as data,
so keep ``mine/__init__.py`` light: the imports belong inside the function. An entry point may also name one plugin
class: ``"drafters.mine" = "mine.drafter:Mine"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from spec_sdk.contracts import Plugin

GROUP = "spec_sdk"
"""The entry-point group and the pluggy project name."""

CONF_PREFIX = "conf."
"""Entry points whose name begins so are YAML packages; their module is not loaded."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def spec_sdk_plugins() -> Iterable[type[Plugin]]:  # type: ignore[empty-body]
    """The plugin classes of a package, of any kinds (see :data:`spec_sdk.contracts.PLUGIN_KINDS`)."""


@hookspec
def spec_sdk_event(event: Mapping[str, Any]) -> None:
    """Called with every event of a run, in order (see :mod:`spec_sdk.events`). Must not change it."""
