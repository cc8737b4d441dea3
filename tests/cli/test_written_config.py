"""YAML and reference are what the declarations of the options say, and every option is explained."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import spec_sdk
from spec_sdk.config.write import BEGIN, main, written_files
from spec_sdk.contracts import PLUGIN_KINDS
from spec_sdk.errors import UserError
from spec_sdk.installed import OWN_DISTRIBUTION
from spec_sdk.options import describe_options
from spec_sdk.registry import Registry
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import PLUGIN_NODES, ModelSettings, RunSettings

ROOT = Path(spec_sdk.__file__).parents[1]
OWN = {
    kind: [offer.plugin for offer in Registry.discover().offers(kind) if offer.package == OWN_DISTRIBUTION]
    for kind in PLUGIN_KINDS
}
WITH_YAML = [plugin for kind in PLUGIN_NODES for plugin in OWN[kind]]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is written, below which the command writes."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copytree(ROOT / "docs" / "configuration", tmp_path / "docs" / "configuration")
    shutil.copy(ROOT / "docs" / "configuration.md", tmp_path / "docs")
    monkeypatch.setattr(spec_sdk, "__file__", str(tmp_path / "spec_sdk" / "__init__.py"))
    return tmp_path


def test_what_is_written_is_up_to_date() -> None:
    stale = [str(path) for path, text in written_files(ROOT).items() if not path.is_file() or path.read_text() != text]
    assert stale == [], "run python -m spec_sdk.config.write"


def test_a_changed_file_is_found_and_written_anew(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    changed = checkout / "conf" / "policy" / "fixed.yaml"
    original = changed.read_text()
    changed.write_text(original.replace("depth: 5", "depth: 6"))
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == f"not up to date: {changed}\n"
    assert main([]) == 0
    assert changed.read_text() == original
    config = checkout / "conf" / "config.yaml"
    config.write_text(config.read_text().replace("max_new_tokens: 128", "max_new_tokens: 129"))
    assert main([]) == 0
    assert config.read_text() == (ROOT / "conf" / "config.yaml").read_text()
    assert main(["--chek"]) == 2
    config.write_text(config.read_text().replace(BEGIN, ""))
    with pytest.raises(UserError, match=r"conf/config\.yaml: the line .* is missing"):
        main([])


@pytest.mark.parametrize("plugin", WITH_YAML, ids=lambda plugin: f"{plugin.kind}/{plugin.name}")
def test_yaml_gives_the_defaults(plugin: Any) -> None:
    # as the command line reads it: to YAML 1.1 alone 1e4 is a text
    node: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / plugin.kind / f"{plugin.name}.yaml"))
    chosen, config = Registry.discover().configure(plugin.kind, node)
    assert chosen is plugin
    for field in dataclasses.fields(plugin.Config):
        given = getattr(config, field.name)
        if field.name in plugin.parts:
            assert given.config == type(given).Config() and given.name == node[field.name]
        else:
            assert given == getattr(plugin.Config(), field.name)


def test_every_option_is_explained() -> None:
    configs = [plugin.Config for plugins in OWN.values() for plugin in plugins]
    unexplained = [
        f"{config.__name__}.{option['name']}"
        for config in (*configs, RunSettings, ModelSettings, SamplingParams)
        for option in describe_options(config)
        if not option["doc"]
    ]
    assert unexplained == []


def test_every_plugin_has_a_section() -> None:
    pages = {kind: (ROOT / "docs" / "configuration" / f"{kind}.md").read_text() for kind in OWN}
    missing = [p.name for kind, plugins in OWN.items() for p in plugins if f"={p.name}`\n" not in pages[kind]]
    assert missing == []
