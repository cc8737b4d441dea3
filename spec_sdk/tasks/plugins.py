"""``task=plugins``: what is installed, from which package, what it guarantees, which options it has."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from spec_sdk.config.option import as_yaml
from spec_sdk.contracts import Task
from spec_sdk.registry import Registry
from spec_sdk.report import print_table
from spec_sdk.settings import Settings


class ListPlugins(Task):
    """Lists all plugins: a table, or JSON with ``json=true``."""

    name = "plugins"
    every_rank = True

    def run(self, app: Settings) -> int:
        """Print to stdout; always 0. Packages that could not be loaded are told of on stderr, and in the JSON."""
        registry = Registry.discover()
        listing = registry.listing()
        if app.json:
            broken = [{"package": problem.package, "message": problem.message} for problem in registry.problems]
            print(json.dumps({"plugins": listing, "broken": broken}, indent=2, ensure_ascii=False))
            return 0
        columns = ["kind", "name", "package", "guarantee", "options"]
        print_table("", columns, [_row(plugin) for plugin in listing], file=sys.stdout, numbers=False)
        return 0


def _row(plugin: Mapping[str, Any]) -> list[str]:
    names = ", ".join([plugin["name"], *plugin["aliases"]])
    options = ", ".join(f"{o['name']}={as_yaml(o['default'])}" for o in plugin["options"])
    if plugin["parts"]:
        options += f"; beside them those of the chosen {' and '.join(plugin['parts'].values())}"
    package = f"{plugin['package']} {plugin['version']}".strip()
    return [plugin["kind"], names, package, plugin["guarantee"] or "", options]
