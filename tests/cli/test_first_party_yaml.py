"""The YAML that comes with spec-sdk says what the plugins' dataclasses say, and every option is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from spec_sdk.contracts import Plugin
from spec_sdk.options import describe_options
from spec_sdk.registry import Registry
from spec_sdk.settings import PLUGIN_NODES

CONF = Path(__file__).parents[2] / "conf"
FILES = [path for kind in PLUGIN_NODES for path in sorted((CONF / kind).glob("*.yaml")) if path.stem != "none"]
OTHER_DEFAULTS = {"members"}
"""A merged drafter without members is refused; its YAML gives it some."""


def options_of_parts(plugin: type[Plugin], registry: Registry) -> dict[str, list[dict[str, Any]]]:
    """Option → what every plugin that could be a part says of it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in plugin.parts.values():
        for name in registry.names(kind):
            for option in describe_options(registry.get(kind, name).Config):
                found.setdefault(option["name"], []).append(option)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_and_dataclass_agree(path: Path) -> None:
    """A plugin's own options in their order; beside them those of all its parts."""
    # as the command line reads it: to YAML 1.1 alone 1e4 is a text
    node: Any = OmegaConf.to_container(OmegaConf.load(path))
    assert node.pop("name") == path.stem
    registry = Registry.discover()
    plugin, _ = registry.configure(path.parent.name, {"name": path.stem})
    own = {option["name"]: option for option in describe_options(plugin.Config)}
    parts = options_of_parts(plugin, registry)
    assert [name for name in node if name not in parts] == list(own)
    assert set(node) - set(own) == set(parts)
    described = {**{name: [option] for name, option in own.items()}, **parts}
    assert [name for name, options in described.items() if not all(option["doc"] for option in options)] == []
    differing = {name for name, options in described.items() if any(node[name] != o["default"] for o in options)}
    assert differing <= OTHER_DEFAULTS


def test_every_named_kind_has_yaml() -> None:
    assert {path.parent.name for path in FILES} == set(PLUGIN_NODES)
