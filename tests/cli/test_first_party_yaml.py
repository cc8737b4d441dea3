"""The YAML that comes with spec-sdk says what the plugins' dataclasses say, and every option is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from spec_sdk.contracts import PLUGIN_KINDS
from spec_sdk.options import describe_options
from spec_sdk.registry import Registry

CONF = Path(__file__).parents[2] / "conf"
FILES = [path for kind in PLUGIN_KINDS for path in sorted((CONF / kind).glob("*.yaml")) if path.stem != "none"]
OTHER_DEFAULTS = {"members"}
"""A merged drafter without members is refused; its YAML gives it some."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_and_dataclass_agree(path: Path) -> None:
    # as the command line reads it: to YAML 1.1 alone 1e4 is a text
    node: Any = OmegaConf.to_container(OmegaConf.load(path))
    assert node.pop("name") == path.stem
    _, config = Registry.discover().configure(path.parent.name, {"name": path.stem})
    options = {option["name"]: option for option in describe_options(type(config))}
    assert list(node) == list(options)
    assert [name for name, option in options.items() if not option["doc"]] == []
    differing = {name for name, option in options.items() if node[name] != option["default"]}
    assert differing <= OTHER_DEFAULTS


def test_every_named_kind_has_yaml() -> None:
    assert {path.parent.name for path in FILES} == set(PLUGIN_KINDS)
