"""No code out of YAML or a command line: Hydra itself would run it in each of these ways, and spec-sdk refuses them.

Every way is tried twice: with plain Hydra over the same configs, where a file appears, and with spec-sdk, where none
does, nothing is written and one line says what is not allowed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra.conf
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from spec_sdk.config.hydra_loader import config_loader
from tests.cli.conftest import Result

Cli = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("fake")

COPY = "{_target_: shutil.copyfile, src: source, dst: touched}"
TYPED = "{_target_:shutil.copyfile,src:source,dst:touched}"
HANDLER = "{version: 1, root: {handlers: [x]}, handlers: {x: {(): shutil.copyfile, src: source, dst: touched}}}"
TYPED_HANDLER = "{version:1,root:{handlers:[x]},handlers:{x:{class:evil_package.Handler}}}"
GLOBAL = "# @package _global_\n"
EVIL = f"{GLOBAL}pipeline: {{name: evil}}\n"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
UP = os.path.relpath("/", Path(hydra.conf.__file__).parent / "hydra" / "job_logging")


@dataclass
class Way:
    """Files below ``yaml/`` and a command line that have Hydra run code; what spec-sdk's line of refusal has in it."""

    arguments: Sequence[str]
    refusal: str
    files: dict[str, str] = field(default_factory=dict)
    multirun: bool = True


WAYS = {
    "callback on the command line": Way([f"+hydra.callbacks.x={TYPED}"], "hydra.callbacks.x: not offered"),
    "callback's target on the command line": Way(
        [
            "+hydra.callbacks.x._target_=shutil.copyfile",
            "+hydra.callbacks.x.src=source",
            "+hydra.callbacks.x.dst=touched",
        ],
        "hydra.callbacks.x._target_: not offered",
        multirun=False,
    ),
    "the whole of hydra on the command line": Way([f"++hydra={{callbacks:{{x:{TYPED}}}}}"], "hydra: not offered"),
    "callback in a pipeline": Way(
        ["pipeline=evil"],
        "hydra.callbacks.x._target_: pipeline/evil of file://",
        {"pipeline/evil": f"{EVIL}hydra: {{callbacks: {{x: {COPY}}}}}\n"},
    ),
    "callback in a pipeline of one run": Way(
        ["pipeline=evil"],
        "hydra.callbacks.x._target_: pipeline/evil of file://",
        {"pipeline/evil": f"{EVIL}hydra: {{callbacks: {{x: {COPY}}}}}\n"},
        multirun=False,
    ),
    "a file's package": Way(
        ["+extra=evil"],
        "hydra.callbacks.x._target_: extra/evil of file://",
        {"extra/evil": f"# @package hydra.callbacks\nx: {COPY}\n"},
    ),
    "a package in a defaults list": Way(
        ["pipeline=evil"],
        "hydra.callbacks.x._target_: extra/evil of file://",
        {
            "extra/evil": f"x: {COPY}\n",
            "pipeline/evil": f"{GLOBAL}defaults:\n  - /extra@hydra.callbacks: evil\npipeline: {{name: evil}}\n",
        },
    ),
    "a package on the command line": Way(
        ["+extra@hydra.callbacks=evil"],
        "+extra@hydra.callbacks: nothing is moved into Hydra's own options",
        {"extra/evil": f"x: {COPY}\n"},
    ),
    "Hydra's group from a directory": Way(
        ["hydra/callbacks=evil"], "hydra/callbacks: not offered", {"hydra/callbacks/evil": f"x: {COPY}\n"}
    ),
    "a launcher from a directory": Way(
        ["hydra/launcher=evil"],
        "hydra/launcher/evil of file://",
        {"hydra/launcher/evil": f"_target_: {BASIC}\nx: {COPY}\n"},
    ),
    "a launcher's option on the command line": Way(
        [f"+hydra.launcher.x={TYPED}"], "hydra.launcher.x: '_target_' is not allowed"
    ),
    "a target among the sweeper's parameters": Way(
        ["pipeline=evil"],
        "hydra.sweeper.params._target_: '_target_' is not allowed",
        {
            "pipeline/evil": f"{EVIL}hydra: {{sweeper: {{params: "
            "{_target_: shutil.copyfile, src: source, dst: touched}}}\n"
        },
    ),
    "an interpolation to another node": Way(
        [f"+drafter.x={TYPED}", "+hydra.launcher.x=${drafter.x}"], "hydra.launcher.x._target_: an interpolation"
    ),
    "a resolver that makes a node": Way(
        ["+hydra.launcher.x='${oc.create:{_target_:shutil.copyfile,src:source,dst:touched}}'"],
        "hydra.launcher.x._target_: an interpolation",
    ),
    "a launcher that is an interpolation": Way(
        [f"+drafter.x={{_target_:{BASIC},y:{TYPED}}}", "hydra.launcher=${drafter.x}"],
        "hydra.launcher: an interpolation has no plugin",
    ),
    "a factory of the jobs' logging": Way(
        ["pipeline=evil"],
        "hydra.job_logging.version: pipeline/evil of file://",
        {"pipeline/evil": f"{EVIL}hydra: {{job_logging: {HANDLER}}}\n"},
    ),
    "a factory of one run's logging": Way(
        ["pipeline=evil"],
        "hydra.job_logging.version: pipeline/evil of file://",
        {"pipeline/evil": f"{EVIL}hydra: {{job_logging: {HANDLER}}}\n"},
        multirun=False,
    ),
    "a factory of Hydra's logging": Way([f"++hydra.hydra_logging={TYPED_HANDLER}"], "hydra.hydra_logging: not offered"),
    "a logging group of a directory": Way(
        ["hydra/job_logging=evil"], "hydra/job_logging/evil of file://", {"hydra/job_logging/evil": HANDLER}
    ),
    "a file outside of all directories": Way(
        [f"hydra/job_logging={UP}CWD/yaml/extra/evil"], "by its path below a directory of YAML", {"extra/evil": HANDLER}
    ),
    "what one of the jobs alone chooses": Way(
        ["pipeline=vanilla,evil"],
        "hydra.job_logging.version: pipeline/evil of file://",
        {"pipeline/evil": f"{EVIL}hydra: {{job_logging: {HANDLER}}}\n"},
    ),
    "an override that a sweeper makes": Way(
        ["pipeline=evil"],
        "hydra.sweeper.params.++hydra.job_logging: Hydra's own options cannot be swept",
        {"pipeline/evil": f'{EVIL}hydra: {{sweeper: {{params: {{++hydra.job_logging: "{TYPED_HANDLER}"}}}}}}\n'},
    ),
    "a package on the search path": Way(["hydra.searchpath=[pkg://evil_package]"], "hydra.searchpath: 'pkg://evil_pa"),
}


@pytest.fixture(autouse=True)
def evil_package(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file to copy, and a package whose import copies it, in the current directory."""
    Path("source").write_text("code ran")
    Path("evil_package").mkdir()
    Path("evil_package/__init__.py").write_text("import shutil; shutil.copyfile('source', 'touched')\n")
    sys.modules.pop("evil_package", None)
    monkeypatch.syspath_prepend(str(own_directory))


@pytest.fixture(autouse=True)
def handlers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's logging closes all handlers that there are; absl's, once imported, then closes what pytest writes to."""
    monkeypatch.setattr("logging.config._clearExistingHandlers", lambda: None)


@pytest.fixture
def way(request: pytest.FixtureRequest, own_directory: Path) -> Way:
    """One of :data:`WAYS`, its files written."""
    chosen = WAYS[request.param]
    for name, text in chosen.files.items():
        file = Path("yaml", f"{name}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    Path("yaml").mkdir(exist_ok=True)
    arguments = [argument.replace("CWD", str(own_directory)) for argument in chosen.arguments]
    return Way(arguments, chosen.refusal, chosen.files, chosen.multirun)


@contextlib.contextmanager
def plain_hydra() -> Iterator[Hydra]:
    """Hydra as it comes, over the same search path."""
    with config_loader() as loader:
        plain = Hydra("plain", ConfigLoaderImpl(loader.config_search_path))
        GlobalHydra.instance().initialize(plain)
        try:
            yield plain
        finally:
            GlobalHydra.instance().clear()


def run_plainly(way: Way, task: Callable[[Any], None]) -> None:
    """What Hydra's own main does; whatever it raises after running the code is no matter."""
    overrides = [*way.arguments, "hydra.run.dir=plain", "hydra.sweep.dir=plain"]
    if not any(argument.startswith("hydra.searchpath") for argument in way.arguments):
        overrides.append(f'hydra.searchpath=["file://{Path("yaml").absolute()}"]')
    with plain_hydra() as plain, contextlib.suppress(Exception):
        (plain.multirun if way.multirun else plain.run)("config", task, overrides)
    sys.modules.pop("evil_package", None)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_hydra_would_run_the_code_and_spec_sdk_refuses_it(way: Way, cli: Cli) -> None:
    run_plainly(way, lambda config: None)
    assert Path("touched").exists(), "plain Hydra runs no code this way: the test shows nothing"

    Path("touched").unlink()
    own = [] if any(argument.startswith("hydra.searchpath") for argument in way.arguments) else ["--config-dir", "yaml"]
    before = sorted(Path().rglob("*"))
    result = cli(*["--multirun"] * way.multirun, *own, *way.arguments, "prompt=a", "max_new_tokens=3", "output_dir=out")
    assert result.status == 2, result.err
    assert way.refusal in result.error
    assert "\n" not in result.error and result.out == ""
    assert sorted(Path().rglob("*")) == before


def test_a_job_gets_no_environment_from_yaml(cli: Cli, own_directory: Path) -> None:
    """Programs are named by environment variables too, such as the compiler that torch calls."""
    Path("yaml/pipeline").mkdir(parents=True)
    Path("yaml/pipeline/evil.yaml").write_text(f"{EVIL}hydra: {{job: {{env_set: {{CXX: ./evil}}}}}}\n")
    seen = []
    run_plainly(Way(["pipeline=evil"], ""), lambda config: seen.append(os.environ.get("CXX")))
    assert seen == ["./evil"]
    refused = cli("-m", "--config-dir", "yaml", "pipeline=evil", "prompt=a")
    assert refused.error.startswith("hydra.job.env_set.CXX: pipeline/evil of file://")


def test_hydras_help_configures_no_logging_of_yaml(cli: Cli, own_directory: Path) -> None:
    argument = f"++hydra.hydra_logging={TYPED_HANDLER}"
    with plain_hydra() as plain, contextlib.suppress(Exception):
        plain.hydra_help("config", ArgumentParser(), Namespace(overrides=[argument]))
    assert Path("touched").exists()
    Path("touched").unlink()
    assert cli("--hydra-help", argument).error.startswith("hydra.hydra_logging: not offered")
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["+hydra.launcher.ray.init.runtime_env={py_executable:sh}"], "hydra.launcher.ray.init.runtime_env: "),
        (["+hydra.launcher.ray.init={runtime_env:{py_executable:sh}}"], "hydra.launcher.ray.init: 'runtime_env'"),
        (["hydra.sweeper.custom_search_space=os.abort"], "hydra.sweeper.custom_search_space: 'custom_search_space'"),
        (["hydra.launcher._target_=x"], "hydra.launcher._target_: '_target_' is not allowed"),
        (["+hydra/launcher@hydra.callbacks.x=basic"], "+hydra/launcher@hydra.callbacks.x: nothing is moved"),
        (["hydra/launcher=basic,joblib"], "hydra/launcher: Hydra's own options cannot be swept"),
        (["hydra.searchpath=[file:///a]", "--config-dir", "."], "hydra.searchpath: given twice"),
        (["hydra/output=default"], "hydra/output: not offered; of Hydra's groups there are: hydra/launcher, "),
        (["hydra/hydra_logging=[-1]"], "hydra/hydra_logging: [-1] is a list; choose one by its name"),
        (["hydra.mode=RUN"], "hydra.mode: not offered; of Hydra's options there are: "),
        (["hydra/launcher=nosuch"], "hydra/launcher: unknown hydra/launcher 'nosuch'; there are: basic"),
    ],
)
def test_what_else_is_refused(cli: Cli, arguments: list[str], message: str) -> None:
    result = cli("--multirun", *arguments, "prompt=a")
    assert result.status == 2
    assert result.error.startswith(message)


def test_yaml_may_say_what_is_swept(cli: Cli) -> None:
    Path("yaml/pipeline").mkdir(parents=True)
    Path("yaml/pipeline/mine.yaml").write_text(
        f"{GLOBAL}pipeline: {{name: mine}}\nhydra: {{sweeper: {{params: {{max_new_tokens: '3,4'}}}}}}\n"
    )
    result = cli("-m", "--config-dir", "yaml", "pipeline=mine", "prompt=a", "output_dir=out")
    assert result.status == 0, result.err
    assert sorted(p.name for p in Path("out").glob("*=*")) == ["0-max_new_tokens=3", "1-max_new_tokens=4"]


def test_no_file_stands_in_the_place_of_an_installed_plugin(cli: Cli) -> None:
    for plugin in ("launcher/basic", "sweeper/basic"):
        file = Path("yaml/hydra", f"{plugin}.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}\n")
        refused = cli("-m", "--config-dir", "yaml", "prompt=a")
        assert refused.status == 2 and not Path("outputs").exists()
        assert f"hydra/{plugin}" in refused.error and "Hydra's groups take no YAML" in refused.error
        file.unlink()
