"""The cache of converted models: whole or absent, whatever happens to the processes that write it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from spec_sdk.errors import UserError
from spec_sdk.model import gguf_convert, source_gguf
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.source_cache import cache_root
from tests.checkpoints.gguf_files import write_gguf

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    return path


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").iterdir() if path.is_dir()]


def entry(cache: Path) -> Path:
    (only,) = entries(cache)
    return only


def test_converted_once(model: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    first = open_checkpoint(str(model))
    assert "converting m.gguf (" in capsys.readouterr().err
    second = open_checkpoint(str(model))
    assert capsys.readouterr() == ("", "")
    assert first.directory == second.directory == entry(cache) and first.name == "m"
    assert model.read_bytes() == before
    assert not [path for path in (cache / "models").iterdir() if path.name.endswith(".tmp")]


def test_a_directory_with_one_gguf_is_that_gguf(model: Path, cache: Path) -> None:
    assert open_checkpoint(str(model.parent)).directory == open_checkpoint(str(model)).directory


def test_a_changed_source_is_converted_anew(model: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = open_checkpoint(str(model)).tensor("model.norm.weight").clone()
    write_gguf(model, seed=5)
    new = open_checkpoint(str(model)).tensor("model.norm.weight")
    assert not torch.equal(old, new)
    assert "source has changed" in capsys.readouterr().err
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_tampered_files_are_noticed_and_made_anew(
    name: str, damage: str, model: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = open_checkpoint(str(model)).tensor("model.norm.weight").clone()
    path = entry(cache) / name
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:-4] + bytes(255 - byte for byte in data[-4:]))
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()
    capsys.readouterr()
    checkpoint = open_checkpoint(str(model))
    assert f"the cached m.gguf is damaged ({name}" in capsys.readouterr().err
    assert path.read_bytes() == data
    assert torch.equal(checkpoint.tensor("model.norm.weight"), good)


@pytest.mark.parametrize("manifest", [None, "{", "{}", '{"format": 1, "source": {}, "files": {}}'])
def test_without_its_manifest_nothing_is_trusted(
    manifest: str | None, model: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_checkpoint(str(model))
    path = entry(cache) / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    open_checkpoint(str(model))
    assert "is damaged (manifest)" in capsys.readouterr().err


def test_new_time_stamps_alone_are_no_damage(model: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_checkpoint(str(model))
    weights = entry(cache) / "model.safetensors"
    os.utime(weights, (1, 1))
    capsys.readouterr()
    open_checkpoint(str(model))
    assert capsys.readouterr().err == ""
    manifest = json.loads((entry(cache) / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["mtime_ns"] == weights.stat().st_mtime_ns


def test_no_space_is_seen_before_writing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 0))
    with pytest.raises(UserError, match="no space left for m.gguf in .*SPEC_SDK_CACHE"):
        open_checkpoint(str(model))
    assert entries(cache) == []


def test_no_space_in_the_middle_leaves_nothing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        open_checkpoint(str(model))
    assert entries(cache) == []
    monkeypatch.undo()
    monkeypatch.setenv("SPEC_SDK_CACHE", str(cache))
    open_checkpoint(str(model))


def test_an_interrupt_leaves_nothing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_convert, "write_safetensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_checkpoint(str(model))
    assert entries(cache) == []


def test_what_killed_conversions_left_is_removed(model: Path, cache: Path) -> None:
    entry = cache / "models"
    entry.mkdir(parents=True)
    for name in (".other-1.abcd.tmp", ".busy-2.abcd.tmp"):
        (entry / name).mkdir()
        (entry / name / "model.safetensors").write_text("half")
    with FileLock(entry / ".busy-2.lock"):
        open_checkpoint(str(model))
    assert [path.name for path in entry.iterdir() if path.suffix == ".tmp"] == [".busy-2.abcd.tmp"]


def test_a_cache_that_cannot_be_written(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.chmod(0o500)
    if os.geteuid() == 0:
        # root may write anywhere: what the system says to others is put in its mouth
        real = os.mkdir

        def refused(path: str, *arguments: object, **options: object) -> None:
            if cache in Path(path).parents:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            real(path, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(UserError, match="cannot be used .*SPEC_SDK_CACHE"):
        open_checkpoint(str(model))


def test_a_cache_that_is_a_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be used .*SPEC_SDK_CACHE"):
        open_checkpoint(str(model))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", "~/mine")
    assert cache_root() == Path.home() / "mine"
    monkeypatch.delenv("SPEC_SDK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/spec-sdk")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "spec-sdk"


SCRIPT = """
import pathlib, sys, time
from spec_sdk.model import source_gguf
from spec_sdk.model.checkpoint import open_checkpoint

model, here, me, pause = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
convert = source_gguf.convert_gguf

def slowly(path, directory, label):
    (directory / "half").write_bytes(b"half-written")
    (here / f"converting-{me}").touch()
    time.sleep(pause)
    (directory / "half").unlink()
    convert(path, directory, label)

source_gguf.convert_gguf = slowly
(here / f"ready-{me}").touch()
while not (here / "go").exists():
    time.sleep(0.01)
print(open_checkpoint(model).tensor("model.norm.weight").sum().item())
"""


def start(model: Path, me: str, pause: float) -> subprocess.Popen[str]:
    """A process that opens ``model`` once there is a file ``go`` beside it, and converts slowly."""
    arguments = [sys.executable, "-c", SCRIPT, str(model), str(model.parent), me, str(pause)]
    return subprocess.Popen(
        arguments, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.01)


def test_two_processes_at_once_convert_once(model: Path, cache: Path) -> None:
    processes = [start(model, me, 2.0) for me in "ab"]
    wait_for(lambda: len(list(model.parent.glob("ready-*"))) == 2)
    (model.parent / "go").touch()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0][0] == outputs[1][0] != ""
    assert len(list(model.parent.glob("converting-*"))) == 1
    errors = sorted(error for _, error in outputs)
    assert "another process is preparing m.gguf" in errors[0] and "converting m.gguf" in errors[1]
    assert "converting" not in errors[0]


def test_a_killed_process_leaves_nothing_that_is_used(model: Path, cache: Path) -> None:
    process = start(model, "a", 60.0)
    (model.parent / "go").touch()
    wait_for((model.parent / "converting-a").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (leftover,) = entries(cache)
    assert leftover.name.endswith(".tmp") and (leftover / "half").exists()
    checkpoint = open_checkpoint(str(model))
    assert entries(cache) == [checkpoint.directory]
    assert not (checkpoint.directory / "half").exists()
    assert source_gguf.converted_gguf(model) == checkpoint.directory
