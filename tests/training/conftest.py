"""A tiny target, and the command line as its users type it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spec_sdk.app import main
from tests.support.text_checkpoints import write_text_checkpoint

QUICK = (
    "task=train_draft",
    "model.target=model",
    "task.output=draft",
    "task.layers=2",
    "task.tokens=1500",
    "task.batch=8",
    "task.prompt_tokens=12",
    "task.answer_tokens=40",
    "task.held_out=0.2",
    "task.shard_tokens=200",
    "task.steps=16",
    "task.warmup=2",
    "task.width=160",
    "task.batch_tokens=640",
    "task.evaluate_every=8",
    "task.save_every=2",
    "task.precision=float32",
    "backend.threads=1",
    "backend.native=false",
)
"""A whole training in a few seconds."""
HEAD = (
    *(option for option in QUICK if not option.startswith("task.layers")),
    "task.method=eagle3",
    "task.taps=[1,2,3]",
    "task.unrolled=3",
    "task.vocabulary=300",
)
"""The same of a head."""


@dataclass(frozen=True)
class Done:
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that can spell any text."""
    directory = tmp_path_factory.mktemp("target") / "model"
    directory.mkdir()
    write_text_checkpoint(directory)
    return directory


@pytest.fixture
def place(tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run in, with the target as ``model``."""
    (tmp_path / "model").symlink_to(tiny_target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``cli("task=…", …)`` in this process."""

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return run


def started(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "spec_sdk", *arguments]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
