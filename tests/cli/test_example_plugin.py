"""The example of a third-party package: built, installed into a fresh environment, and found there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

import spec_sdk

ROOT = Path(spec_sdk.__file__).parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]
SERVICE = """
import contextlib, io, json, os, sys
requests, answers = sys.stdin, sys.stdout
sys.stdin = open(os.devnull)
from spec_sdk.app import main
for line in requests:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(json.loads(line))
    print(json.dumps([status, out.getvalue(), err.getvalue()]), file=answers, flush=True)
"""
"""Command lines, one after the other, in one process: starting one takes longer than what it does here."""


def environment_without_ours() -> dict[str, str]:
    """The environment without our checkout on Python's path."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def call(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command without our checkout on its path."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, env=environment_without_ours())


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
    """Runs the Python of an environment with the two wheels, from another directory.

    The dependencies are those of the running environment, through a path file: nothing is downloaded.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))
    places = [place for place in sys.path if Path(place).name == "site-packages"]
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in places))
    pip("install", "--quiet", "--no-deps", "--no-index", *wheels, python=python)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return lambda *arguments: call(python, *arguments, cwd=elsewhere)


@pytest.fixture(scope="module")
def command_line(installed: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """``command_line("task=plugins", …)`` is what ``python -m spec_sdk`` of that environment does."""
    python = installed("-c", "import sys; print(sys.executable)").stdout.strip()
    service = subprocess.Popen(
        [python, "-c", SERVICE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=environment_without_ours(),
    )
    assert service.stdin and service.stdout
    requests, answers = service.stdin, service.stdout

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        print(json.dumps(arguments), file=requests, flush=True)
        return subprocess.CompletedProcess(arguments, *json.loads(answers.readline()))

    with service:
        yield run
        requests.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model of five layers."""
    from tests.support.tiny_checkpoints import write_checkpoint

    directory = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(directory)
    return directory


def test_the_environment_uses_the_wheel_and_not_the_checkout(installed: Run) -> None:
    code = (
        "import spec_sdk, spec_sdk.conf, spec_sdk_drafters as d, spec_sdk.prompts as p; "
        "print(spec_sdk.__file__, d.__file__, *p.SHIPPED.values()); assert all(map(p.read_prompt_file, p.SHIPPED))"
    )
    where = installed("-c", code)
    assert where.returncode == 0, where.stderr
    assert str(ROOT / "spec_sdk") not in where.stdout and str(ROOT / "plugins") not in where.stdout


def test_each_plugin_fits_in_fifty_lines() -> None:
    for module in ("growth", "runner", "sampler", "verifier", "policy"):
        source = ROOT / "docs" / "example_plugin" / "spec_sdk_follow" / f"{module}.py"
        assert len(source.read_text(encoding="utf-8").splitlines()) <= 50


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
        "options": [
            {
                "name": "length",
                "type": "int",
                "default": 4,
                "valid": "whole number, 1 or more",
                "doc": "most tokens to propose",
            }
        ],
        "parts": {},
    }
    assert listed["broken"] == []


def test_its_growth_and_runner_are_listed_too(command_line: Run) -> None:
    listed = json.loads(command_line("task=plugins", "json=true").stdout)["plugins"]
    theirs = {(plugin["kind"], plugin["name"]): plugin for plugin in listed if plugin["package"] == "spec-sdk-follow"}
    assert set(theirs) == {
        ("drafter", "follow"),
        ("growth", "confident"),
        ("runner", "skip_layers"),
        ("sampler", "n_sigma"),
        ("verifier", "first_draws"),
        ("policy", "resting"),
    }
    [floor], [skip] = (theirs[key]["options"] for key in (("growth", "confident"), ("runner", "skip_layers")))
    assert (floor["name"], floor["default"]) == ("floor", 0.4)
    assert (skip["name"], skip["default"], theirs["runner", "skip_layers"]["guarantee"]) == ("skip", [], "relaxed")
    [draft_model] = [plugin for plugin in listed if plugin["name"] == "draft_model"]
    assert draft_model["parts"] == {"growth": "growth", "runner": "runner"}
    table = command_line("task=plugins").stdout
    assert "runner=sequential; beside them those of the chosen growth and runner" in table
    assert "floor=0.4" in table and "skip=[]" in table


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (("plugin=follow", "drafter.length=2", "task.draws=10"), "drafter follow (spec-sdk-follow 0.1.0)"),
        (("plugin=confident", "drafter.floor=0.2", "task.draws=60"), "growth confident (spec-sdk-follow 0.1.0)"),
        (("plugin=n_sigma", "sampler.n=0.5"), "sampler n_sigma (spec-sdk-follow 0.1.0)"),
        (("plugin=first_draws", "task.draws=100"), "verifier first_draws (spec-sdk-follow 0.1.0)"),
        (("plugin=resting", "policy.rest=2"), "policy resting (spec-sdk-follow 0.1.0)"),
    ],
)
def test_they_pass_the_checks_of_their_kinds(command_line: Run, arguments: Sequence[str], title: str) -> None:
    done = command_line("task=check", *arguments)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, title), done.stdout + done.stderr
    assert "FAIL" not in done.stdout and done.stdout.count("\npass  ") >= 4


def test_its_drafter_needs_no_yaml(command_line: Run) -> None:
    assert not (ROOT / "docs" / "example_plugin" / "spec_sdk_follow" / "conf" / "drafter" / "follow.yaml").exists()
    assert "follow" in command_line("--help").stdout
    config = command_line("--cfg", "job", "--package", "drafter", "drafter=follow", "drafter.length=2")
    assert config.stdout == "name: follow\nlength: 2\n", config.stderr


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a refusal: alone, or after the line that says what was started."""
    *before, message = done.stderr.splitlines()
    assert len(before) <= 1 and all(line.startswith("spec-sdk ") for line in before)
    return message


def test_its_options_are_checked_like_ours(command_line: Run) -> None:
    done = command_line("drafter=follow", "drafter.lenght=2")
    assert done.returncode == 2
    assert done.stderr == "error: drafter.lenght: unknown option of drafter 'follow', did you mean 'length'?\n"
    done = command_line("drafter=follow", "drafter.length=0", "prompt=a")
    assert (done.returncode, last_line(done)) == (2, "error: drafter.length: 0 must be 1 or more")


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        (["drafter=confident_draft"], {"name": "draft_model", "growth": "confident", "floor": 0.4, "width": 4}),
        (["drafter=confident_draft", "drafter.floor=0.5"], {"growth": "confident", "floor": 0.5}),
        (["drafter=draft_model", "drafter.growth=confident", "drafter.floor=0.5"], {"width": 4, "floor": 0.5}),
        (["+drafter.floor=0.5", "drafter.growth=confident"], {"name": "easyspec", "floor": 0.5}),
        (["drafter.runner=skip_layers", "drafter.skip=[3,4]"], {"name": "easyspec", "skip": [3, 4]}),
    ],
)
def test_options_of_its_parts_stand_beside_the_drafters(
    command_line: Run, overrides: Sequence[str], shown: dict[str, object]
) -> None:
    done = command_line("--cfg", "job", "--package", "drafter", "pipeline=easyspec_paper", *overrides)
    assert done.returncode == 0, done.stderr
    assert shown.items() <= yaml.safe_load(done.stdout).items()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["drafter.floor=0.5"], "drafter.floor: an option of drafter.growth=confident, which is not chosen"),
        (["drafter.growth=confident", "drafter.flor=1"], "drafter.flor: unknown option of drafter 'easyspec', did you"),
        (["drafter.growth=confident", "drafter.floor=2"], "drafter.floor: 2.0 must be between 0 and 1"),
        (["drafter.growth=confident", "drafter.floor=x"], "drafter.floor: 'x' is not a number"),
        (
            ["drafter.runner=skip_layers", "drafter.skip=[9]"],
            "drafter.skip: there is no layer 9; the draft model's are",
        ),
    ],
)
def test_bad_options_of_its_parts_are_one_line(
    command_line: Run, checkpoint: Path, overrides: Sequence[str], message: str
) -> None:
    given = ("pipeline=easyspec_paper", f"model.target={checkpoint}", "prompt=a", "output_dir=out")
    done = command_line(*given, *overrides)
    assert (done.returncode, last_line(done).startswith(f"error: {message}")) == (2, True), done.stderr


@pytest.mark.parametrize("temperature", [0, 1])
def test_its_parts_draft(command_line: Run, checkpoint: Path, tmp_path: Path, temperature: int) -> None:
    done = command_line(
        *(f"model.target={checkpoint}", "model.draft_layers=[0,1,2,3]", "prompt=a b a b a"),
        *("chat=false", "max_new_tokens=24", "ignore_eos=true", f"output_dir={tmp_path}", "drafter=draft_model"),
        *("drafter.growth=confident", "drafter.floor=0.02", "drafter.runner=skip_layers", "drafter.skip=[1,2]"),
        *(f"sampling.temperature={temperature}", "compare=true"),
    )
    assert done.returncode == 0, done.stderr
    [run] = json.loads((tmp_path / "metrics.json").read_text())["prompts"]
    assert run["drafted"] > 0 and len(run["token_ids"]) == 24


def test_a_sweep_over_options_of_its_parts(command_line: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = command_line(
        *("--multirun", "pipeline=sd_chain", f"model.target={checkpoint}", "prompt=a b", "chat=false"),
        *("max_new_tokens=4", "drafter.growth=confident", "drafter.floor=0.1,0.9", f"output_dir={tmp_path}"),
    )
    assert done.returncode == 0, done.stderr
    jobs = json.loads((tmp_path / "summary.json").read_text())["jobs"]
    assert [job["job"] for job in jobs] == ["drafter.floor=0.1", "drafter.floor=0.9"]


def test_it_drafts(command_line: Run, checkpoint: Path, tmp_path: Path) -> None:
    arguments = [f"model.target={checkpoint}", "prompt=a b a b a", "chat=false", "max_new_tokens=48", "ignore_eos=true"]
    runs = {}
    for drafter in ("follow", "none"):
        done = command_line(*arguments, f"drafter={drafter}", f"output_dir={tmp_path}/{drafter}")
        assert done.returncode == 0, done.stderr
        [runs[drafter]] = json.loads((tmp_path / drafter / "metrics.json").read_text())["prompts"]
    assert runs["follow"]["drafted"] > 0
    assert runs["follow"]["token_ids"] == runs["none"]["token_ids"]
