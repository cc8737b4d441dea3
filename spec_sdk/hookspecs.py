"""The hooks that a plugin package may implement. Found through the entry-point group ``spec_sdk``.

A package that offers plugins needs one function and one line of its pyproject.toml::

    # mine/__init__.py                                # pyproject.toml
    from spec_sdk.hookspecs import hookimpl           [project.entry-points."spec_sdk"]
                                                      mine = "mine"
    @hookimpl                                         "conf.mine" = "mine.conf"
    def spec_sdk_plugins():
        from mine.drafter import Mine

        return [Mine]

``conf.mine``, if there is YAML, names the package that holds it (``mine/conf/drafter/mine.yaml``), and ``drafts.mine``
one that holds trained drafts (:mod:`spec_sdk.model.trained_drafts`). They are read as data, so keep
``mine/__init__.py`` light: the imports belong inside the function. An entry point may also name one plugin
class: ``"drafters.mine" = "mine.drafter:Mine"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from spec_sdk.installed import GROUP

if TYPE_CHECKING:
    from spec_sdk.contracts import Plugin
    from spec_sdk.kept_files import KeptFiles

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def spec_sdk_plugins() -> Iterable[type[Plugin]]:  # type: ignore[empty-body]
    """The plugin classes of a package, of any kinds (see :data:`spec_sdk.contracts.PLUGIN_KINDS`)."""


@hookspec
def spec_sdk_event(event: Mapping[str, Any]) -> None:
    """Called with every event of a run, in order (see :mod:`spec_sdk.events`). Must not change it."""


@hookspec
def spec_sdk_kept_files() -> Iterable[KeptFiles]:  # type: ignore[empty-body]
    """What a package keeps below :func:`spec_sdk.model.source_cache.cache_root`: ``task=cache`` lists and cleans it."""
