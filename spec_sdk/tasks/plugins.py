"""``task=plugins``: what is installed, from which package, what it guarantees, which options it has."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from spec_sdk.config.option import as_yaml
from spec_sdk.contracts import Task
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.tables import text_width, wrapped


class ListPlugins(Task):
    """Lists all plugins: a list, or JSON with ``json=true``."""

    name = "plugins"
    computes = False
    every_rank = True

    def run(self, app: Settings) -> int:
        """Print to stdout; always 0. Packages that could not be loaded are told of on stderr, and in the JSON."""
        registry = Registry.discover()
        listing = registry.listing()
        if app.json:
            broken = [{"package": problem.package, "message": problem.message} for problem in registry.problems]
            print(json.dumps({"plugins": listing, "broken": broken}, indent=2, ensure_ascii=False))
            return 0
        for kind, plugins in groupby(listing, key=lambda plugin: plugin["kind"]):
            print(f"{kind}\n")
            for plugin in plugins:
                print(_item(plugin, text_width(sys.stdout)))
        if registry.problems:
            # told already, but above a list of pages
            packages = ", ".join(dict.fromkeys(problem.package for problem in registry.problems))
            print(f"not listed, see the warnings above: some or all plugins of {packages}", file=sys.stderr)
        return 0


def _item(plugin: Mapping[str, Any], width: int) -> str:
    """A plugin with its package and guarantee, what it is, and its options, in lines of at most ``width``."""
    names = ", ".join([plugin["name"], *plugin["aliases"]])
    about = [f"{plugin['package']} {plugin['version']}".strip(), *[plugin["guarantee"]] * bool(plugin["guarantee"])]
    options = ", ".join(f"{o['name']}={as_yaml(o['default'])}" for o in plugin["options"])
    if plugin["parts"]:
        options += f"; beside them those of the chosen {' and '.join(plugin['parts'].values())}"
    lines = [(2, f"{names} ({', '.join(about)})"), (6, plugin["summary"]), (6, options)]
    return "\n".join(wrapped(f"{' ' * indent}{text}", width, indent + 2) for indent, text in lines if text) + "\n"
