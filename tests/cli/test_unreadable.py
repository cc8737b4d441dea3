"""What may not be read or written, or is no text: one line and status 2, whoever the user is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result
from tests.support.permissions import permissions_count
from tests.support.tiny_checkpoints import write_checkpoint

Cli = Callable[..., Result]
MINE = "# @package _global_\npipeline: {name: mine}\n"


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """``refused("prompt=a", …)``: the one line with which a command line is refused, permissions counted."""

    def run(*arguments: str) -> str:
        with permissions_count():
            result = cli("prompt=a", "max_new_tokens=2", *arguments)
        assert result.status == 2
        return result.error

    return run


@pytest.fixture
def mine(own_directory: Path) -> Path:
    """``conf/pipeline/mine.yaml``, a pipeline of one's own."""
    path = own_directory / "conf" / "pipeline" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("mode", [0, 0o444, 0o111])
def test_a_model_directory_that_may_not_be_entered_or_listed(
    refused: Callable[..., str], own_directory: Path, mode: int
) -> None:
    model = own_directory / "outer" / "model"
    model.mkdir(parents=True)
    write_checkpoint(model)
    model.chmod(mode)
    assert "model: cannot be read: Permission denied" in refused("model.target=outer/model")
    model.chmod(0o755)
    model.parent.chmod(0)
    assert refused("model.target=outer/model") == "model: outer/model cannot be reached: Permission denied"
    assert refused("model.target=outer/modle") == "model: outer/modle cannot be reached: Permission denied"
    model.parent.chmod(0o755)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_file_that_may_not_be_read(refused: Callable[..., str], own_directory: Path, name: str) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    (model / name).chmod(0)
    error = refused("model.target=model")
    assert name in error and "ermission denied" in error


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "block"])
def test_a_heads_directory_that_may_not_be_read(refused: Callable[..., str], own_directory: Path, drafter: str) -> None:
    for name in ("model", "head"):
        (own_directory / name).mkdir()
    write_checkpoint(own_directory / "model")
    (own_directory / "head").chmod(0)
    error = refused("model.target=model", f"drafter={drafter}", "drafter.checkpoint=head")
    assert error.endswith("head: cannot be read: Permission denied")


def test_an_output_directory_that_may_not_be_reached_or_written(
    refused: Callable[..., str], own_directory: Path, fake: Any
) -> None:
    closed = own_directory / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    assert "cannot be written to (Permission denied)" in refused("output_dir=closed")
    assert "cannot be written to (Permission denied)" in refused("output_dir=closed/a/b")
    closed.chmod(0)
    assert refused("output_dir=closed/a") == "output_dir: closed/a cannot be reached: Permission denied"
    closed.chmod(0o755)
    (own_directory / "outputs").mkdir(mode=0)
    assert "cannot be reached: Permission denied" in refused()


def test_a_sweep_directory_that_cannot_be_made(refused: Callable[..., str], own_directory: Path, fake: Any) -> None:
    (own_directory / "closed").mkdir(mode=0o555)
    for directory in ("closed/sweep", "/proc/spec-sdk"):
        error = refused("--multirun", "pipeline=vanilla,sd_chain", f"output_dir={directory}")
        assert error.startswith("output_dir: /") and "cannot be written to (" in error


def test_a_config_directory_that_may_not_be_read(refused: Callable[..., str], mine: Path) -> None:
    conf = mine.parent.parent
    for closed, mode in ((conf, 0), (conf, 0o111), (mine.parent, 0), (mine, 0)):
        before = closed.stat().st_mode
        closed.chmod(mode)
        error = refused("--config-dir", "conf", "pipeline=mine")
        assert str(closed) in error and "cannot be read: Permission denied" in error
        closed.chmod(before)
    assert refused("--config-dir", "~nosuchuser/x").startswith("--config-dir: ~nosuchuser/x: ")
    assert refused("--config-dir", "") == "--config-dir: an empty name is not a directory"


NINES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00\x01", "is no UTF-8 text (byte 0)"),
        (b"a: \x00", "not YAML: special characters are not allowed"),
        (b"pipeline: [\n", "line 2: not YAML"),
        (b"[" * 3000, "is nested too deeply"),
        (b"a: &a [*a]", "is nested too deeply"),
        (NINES.encode(), "stands for more than 100,000 values"),
        (b"a: !!timestamp 5", "mine.yaml"),
        (b"- a", "holds a list, not options"),
        (b"5", "holds a value, not options"),
        (b"defaults: 5", "defaults: is not a list"),
        (b"defaults: [{drafter: [1]}]", "defaults: {'drafter': [1]} is neither a name nor {group: name}"),
        (b"defaults: [{1: a}]", "is neither a name nor {group: name}"),
        (b"a: !!python/object/apply:os.system [ls]", "mine.yaml line 1: not YAML"),
    ],
)
@pytest.mark.parametrize("way", [("--config-dir", "conf"), ("hydra.searchpath=[file://conf]",)])
def test_yaml_that_is_none(
    refused: Callable[..., str], mine: Path, content: bytes, message: str, way: tuple[str, ...]
) -> None:
    mine.write_bytes(content)
    error = refused(*way, "pipeline=mine")
    assert str(mine) in error and message in error


@pytest.mark.parametrize("directory", ["a,b", "a'b", "[x]", "${x}", "a b", "a\\b"])
def test_a_config_directory_of_any_name(cli: Cli, own_directory: Path, directory: str) -> None:
    path = own_directory / directory / "pipeline" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MINE)
    assert "name: mine" in cli("--config-dir", directory, "pipeline=mine", "--cfg", "job").out


def test_pipelines_that_choose_one_another(refused: Callable[..., str], mine: Path) -> None:
    mine.write_text("# @package _global_\ndefaults: [mine]\n")
    assert "\n" not in refused("--config-dir", "conf", "pipeline=mine")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("prompt_file={}", "prompt_file: 'a\\x00b' is no path: embedded null byte"),
        ("output_dir={}", "output_dir: 'a\\x00b' is no path: embedded null byte"),
        ("model.target={}", "model: 'a\\x00b' is no path: embedded null byte"),
        ("+audio={}", "audio: 'a\\x00b' is no path: embedded null byte"),
    ],
)
def test_names_with_a_null_byte(cli: Cli, mine: Path, argument: str, message: str) -> None:
    key = argument.partition("=")[0].lstrip("+")
    section, _, option = key.rpartition(".")
    set_to = f"{section}: {{{option}: " if section else f"{option}: "
    mine.write_text(f'{MINE}{set_to}"a\\0b"{"}" if section else ""}\n')
    prompt = () if key in ("prompt_file", "audio") else ("prompt=a",)
    result = cli("--config-dir", "conf", "pipeline=mine", *prompt)
    assert result.status == 2 and message in result.error


@pytest.mark.parametrize("option", ["prompt_file", "model.target", "output_dir", "audio", "model.draft"])
def test_names_that_are_too_long(cli: Cli, own_directory: Path, option: str) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    prompt = () if option in ("prompt_file", "audio") else ("prompt=a b",)
    long = [f"{option}={'a' * 300}"]
    if option != "model.target":
        long.append("model.target=model")
    result = cli(*long, "pipeline=sd_chain", *prompt)
    assert result.status == 2 and f"{'a' * 80}… is too long" in result.error


def test_a_file_without_an_end(cli: Cli) -> None:
    assert cli("prompt_file=/dev/zero").error == "prompt_file: /dev/zero is larger than 256 MiB"


def test_pipes_in_the_place_of_files_are_not_waited_for(cli: Cli, own_directory: Path, mine: Path) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (model / name).rename(model / "kept")
        os.mkfifo(model / name)
        assert cli("model.target=model", "prompt=a").status == 2
        (model / name).unlink()
        (model / "kept").rename(model / name)
    mine.unlink()
    os.mkfifo(mine)
    assert cli("--config-dir", "conf", "pipeline=mine").error.startswith("pipeline: unknown pipeline 'mine'")
