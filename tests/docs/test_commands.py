"""Every command of README and docs is run as it is written, on tiny stand-ins for the models that it names.

What a comment above it says not to run, such as for want of a GPU, is composed and checked against the real options.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spec_sdk import standard_input
from spec_sdk.app import main
from spec_sdk.config.composing import settings_for
from spec_sdk.model.source_cache import cache_root
from spec_sdk.registry import Registry
from spec_sdk.settings import PLUGIN_NODES
from tests.docs.pages import PAGES, ROOT, Command, commands
from tests.docs.stand_ins import with_stand_ins, write_installed_example, write_stand_ins

COMMANDS = {command.text: command for page in reversed(PAGES) for command in reversed([*commands(page)])}
"""Each once, at the place where it first stands."""
OURS = [command for command in reversed(COMMANDS.values()) if re.search(r"-m spec_sdk( |$)", command.text)]
OTHERS = [command for command in reversed(COMMANDS.values()) if command not in OURS]
RUN = [command for command in OURS if not command.not_run]
NOT_RUN = [command for command in OURS if command.not_run]
LAUNCHED = ("accelerate", "torchrun")
RUN_ELSEWHERE = {
    command.where
    for command in RUN
    if command.page != ROOT / "README.md" and re.search(r" task=(check|doctor)( |$)", command.text)
}
"""They take seconds each, and tests/doctor and tests/cli/test_example_plugin.py run them: here in the full tier."""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with all that commands name; the example package is installed meanwhile."""
    place = tmp_path_factory.mktemp("stand-ins")
    write_stand_ins(place)
    # native kernels are compiled once on a machine, and not for this
    (place / "cache").mkdir()
    (cache_root() / "native").mkdir(parents=True, exist_ok=True)
    (place / "cache" / "native").symlink_to(cache_root() / "native")
    write_installed_example(place / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place / "site"))
        Registry.discover.cache_clear()
        yield place
    Registry.discover.cache_clear()


@pytest.fixture(autouse=True)
def own_directory(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(stand_ins)
    monkeypatch.setenv("SPEC_SDK_CACHE", str(stand_ins / "cache"))
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        standard_input.whole_text.cache_clear()
        standard_input.piped_text.cache_clear()
        yield


def arguments_of(command: Command) -> list[str]:
    """What stands behind ``-m spec_sdk``."""
    typed = shlex.split(command.text, comments=True)
    return typed[typed.index("spec_sdk") + 1 :]


@pytest.mark.parametrize(
    "command",
    [pytest.param(of, marks=[pytest.mark.full] * (of.where in RUN_ELSEWHERE), id=of.where) for of in RUN],
)
def test_it_runs(command: Command, stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not command.text.startswith(LAUNCHED), "it takes several processes: say so above it, <!-- not run: … -->"
    arguments = arguments_of(command)
    if not {"--help", "--version"} & set(arguments):
        arguments = with_stand_ins(arguments, stand_ins)
    status = main(arguments)
    shown = capsys.readouterr()
    assert status == 0, shown.out[-2000:] + shown.err[-1000:]
    assert (shown.out + shown.err).strip()


def test_the_search_runs(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written, but for fewer trials of fewer prompts."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    [command] = [command for command in NOT_RUN if "hydra/sweeper=optuna" in command.text]
    arguments = [*with_stand_ins(arguments_of(command), stand_ins), "hydra.sweeper.n_trials=2", "prompt_limit=1"]
    assert main([*arguments, "max_new_tokens=4", "output_dir=searched"]) == 0, capsys.readouterr().err[-1000:]
    jobs = json.loads(Path("searched", "summary.json").read_text(encoding="utf-8"))["jobs"]
    assert len(jobs) == 2 and all(job["metric"]["tokens_per_second"] > 0 for job in jobs)


@pytest.mark.parametrize("command", NOT_RUN, ids=lambda command: command.where)
def test_its_options_exist(command: Command) -> None:
    options = [typed for typed in arguments_of(command) if "=" in typed and not typed.startswith("hydra")]
    if {"-m", "--multirun"} & set(arguments_of(command)):
        # of a sweep's values the first
        options = [re.sub(r"=(?:int\(interval\()?([^,\[{(]+),.*", r"=\1", option) for option in options]
    settings = settings_for(options)
    for kind in PLUGIN_NODES:
        chosen = getattr(settings, kind)
        # without one, of kinds that need not be there
        if chosen["name"] != "none":
            Registry.discover().configure(kind, chosen)


@pytest.mark.parametrize("command", OTHERS, ids=lambda command: command.where)
def test_other_programs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [word for word in shlex.split(command.text, comments=True) if not re.match(r"[A-Z_]+=", word)]
    if typed[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(typed[1:2]) <= set(targets)
    elif typed[0] == "pip":
        _check_requirement(typed[-1])
    elif typed[0] == "curl":
        # run against a server by tests/serve/test_documented.py
        assert "http://127.0.0.1:8000/v1/" in command.text
    elif typed[:2] == [".", ".venv/bin/activate"]:
        assert ".venv" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif typed[1:3] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in typed[3:] if word.startswith("tests/"))
    elif typed[1] == "-m" and not typed[2].startswith("benchmarks"):
        assert importlib.util.find_spec(typed[2]) is not None
    else:
        module = typed[2] if typed[1] == "-m" else typed[1].removesuffix(".py").replace("/", ".")
        _parse_benchmark(module, typed[3:] if typed[1] == "-m" else typed[2:], monkeypatch)


def _check_requirement(requirement: str) -> None:
    """A directory, or ours with an extra that exists."""
    name, _, extra = requirement.rstrip("]").partition("[")
    assert name in (".", "spec-sdk") or (ROOT / name / "pyproject.toml").is_file(), requirement
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not extra or re.search(rf"^{extra} = \[", declared, flags=re.MULTILINE), requirement


class Parsed(Exception):
    """Options were read: as far as a benchmark is run here."""


def _parse_benchmark(module: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, _only(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr(sys, "argv", [module, *options])
    try:
        with pytest.raises(Parsed):
            runpy.run_module(module, run_name="__main__")
    except ModuleNotFoundError as missing:
        # tests do without what this extra alone brings
        extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        named = str(missing.name).replace("_", "-")
        assert any(requirement.startswith(named) for requirement in extra["benchmarks"])


def _only(parse: Callable[..., Any]) -> Callable[..., NoReturn]:
    def parse_only(*arguments: Any) -> NoReturn:
        parse(*arguments)
        raise Parsed

    return parse_only


def test_commands_are_found() -> None:
    assert len(RUN) >= 40 and len(OTHERS) >= 20
    assert {command.page.name for command in RUN} >= {"README.md", "sampling.md", "own_models.md", "writing_plugins.md"}
