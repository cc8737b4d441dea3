"""The library inside a user's own Hydra program, whose global state stays as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from spec_sdk import Engine

PROGRAM = """
from dataclasses import dataclass, field

import hydra
from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import getbase

from spec_sdk import Engine


@dataclass
class Drafter:
    name: str = "of this program"


@dataclass
class Config:
    model: str = ""
    depth: int = 2
    drafter: Drafter = field(default_factory=Drafter)


# names that spec-sdk's own YAML has too
store = ConfigStore.instance()
store.store(name="config", node=Config)
store.store(group="drafter", name="prompt_lookup", node=Drafter)


def state():
    plugins = [plugin.__name__ for plugin in Plugins.instance().discover(SearchPathPlugin)]
    loader = GlobalHydra.instance().config_loader()
    path = [element.path for element in loader.get_search_path().get_path()]
    return GlobalHydra.instance().hydra, getbase(), plugins, path, sorted(store.repo), HydraConfig.get().job.name


@hydra.main(version_base="1.2", config_path=None, config_name="config")
def main(config):
    before = state()
    overrides = ["max_new_tokens=5", f"policy.depth={config.depth}", "ignore_eos=true"]
    engine = Engine.from_pipeline("prompt_lookup", target=config.model, overrides=overrides)
    print(*engine.generate("Hello there")[0].tokens)
    try:
        Engine.from_pipeline("nosuch")
    except Exception as error:
        print(error)
    assert state() == before, state()
    assert compose("config", overrides=["depth=4"]).depth == 4


main()
"""


def test_a_hydra_program_is_not_disturbed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", f"model={checkpoint}", "depth=3", "hydra.run.dir=."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokens, refusal = done.stdout.splitlines()
    overrides = ["max_new_tokens=5", "policy.depth=3", "ignore_eos=true"]
    expected = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=overrides).generate("Hello there")
    assert [int(token) for token in tokens.split()] == expected[0].tokens
    assert refusal.startswith("pipeline: unknown pipeline 'nosuch'")


def test_composing_inside_another_composition(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("width: 3\n")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        own = GlobalHydra.instance().hydra
        assert Engine.from_pipeline("vanilla", target=checkpoint).generate("a", max_new_tokens=1)
        assert GlobalHydra.instance().hydra is own
        assert compose("mine").width == 3
