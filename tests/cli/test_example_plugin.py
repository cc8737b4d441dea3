"""The example of a third-party package: built, installed into a fresh environment, and found there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import spec_sdk

ROOT = Path(spec_sdk.__file__).parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout to build from")


def call(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command without our checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, env=environment)


def pip(*arguments: str | Path, python: Path | None = None) -> None:
    done = call(sys.executable, "-m", "pip", *(("--python", python) if python else ()), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The wheels of spec-sdk and of the example."""
    directory = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "docs" / "example_plugin"):
        pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, source)
    return sorted(directory.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs ``python -m spec_sdk`` of an environment with the two wheels, from another directory.

    The dependencies are those of the running environment, through a path file: nothing is downloaded.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("install", "--quiet", "--no-deps", "--no-index", *wheels, python=python)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return lambda *arguments: call(python, *arguments, cwd=elsewhere)


def test_the_environment_uses_the_wheel_and_not_the_checkout(installed: Run) -> None:
    code = "import spec_sdk, spec_sdk.conf, spec_sdk_drafters as d; print(spec_sdk.__file__, d.__file__)"
    where = installed("-c", code)
    assert where.returncode == 0, where.stderr
    assert str(ROOT / "spec_sdk") not in where.stdout and str(ROOT / "plugins") not in where.stdout


def test_it_is_listed_with_its_package_and_options(installed: Run) -> None:
    done = installed("-m", "spec_sdk", "task=plugins", "json=true")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    [follow] = [plugin for plugin in listed["plugins"] if plugin["name"] == "follow"]
    assert follow == {
        "kind": "drafter",
        "name": "follow",
        "aliases": [],
        "package": "spec-sdk-follow",
        "version": "0.1.0",
        "guarantee": None,
        "summary": "Proposes the tokens that followed the last earlier occurrence of the pending token.",
        "options": [{"name": "length", "type": "int", "default": 4, "doc": "most tokens to propose."}],
    }
    assert listed["broken"] == []


def test_its_yaml_is_found_without_flags(installed: Run) -> None:
    assert "follow" in installed("-m", "spec_sdk", "--help").stdout
    config = installed("-m", "spec_sdk", "--cfg", "job", "--package", "drafter", "drafter=follow", "drafter.length=2")
    assert config.stdout == "name: follow\nlength: 2\n", config.stderr


def test_its_options_are_checked_like_ours(installed: Run) -> None:
    done = installed("-m", "spec_sdk", "drafter=follow", "drafter.lenght=2")
    assert done.returncode == 2
    assert done.stderr == "error: drafter.lenght: unknown option of drafter 'follow', did you mean 'length'?\n"


def test_it_drafts(installed: Run, tmp_path: Path) -> None:
    from tests.support.tiny_checkpoints import write_checkpoint

    write_checkpoint(tmp_path)
    arguments = [f"model.target={tmp_path}", "prompt=a b a b a", "chat=false", "max_new_tokens=48", "ignore_eos=true"]
    runs = {}
    for drafter in ("follow", "none"):
        done = installed("-m", "spec_sdk", *arguments, f"drafter={drafter}", f"output_dir={tmp_path}/{drafter}")
        assert done.returncode == 0, done.stderr
        [runs[drafter]] = json.loads((tmp_path / drafter / "metrics.json").read_text())["prompts"]
    assert runs["follow"]["drafted"] > 0
    assert runs["follow"]["token_ids"] == runs["none"]["token_ids"]
