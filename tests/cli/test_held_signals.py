"""SIGTERM while a run keeps what it has, or tells why it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import app
from spec_sdk.cli.jobs import Terminated, end_on_sigterm
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import UserError
from spec_sdk.held_signals import sigterm_held_back
from spec_sdk.run_output import RunOutput
from tests.cli.conftest import Result


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    end_on_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_takes_effect_behind_what_was_to_be_done() -> None:
    done = []
    with pytest.raises(Terminated), sigterm_held_back():
        signal.raise_signal(signal.SIGTERM)
        done.append("all")
    assert done == ["all"]
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


def test_a_run_that_ends_by_an_exception_ends_by_that_one() -> None:
    done = []
    with pytest.raises(ValueError, match="^lost$"):
        try:
            raise ValueError("lost")
        finally:
            with sigterm_held_back():
                signal.raise_signal(signal.SIGTERM)
                done.append("all")
    assert done == ["all"]


def test_what_fails_inside_is_raised() -> None:
    with pytest.raises(OSError, match="^full$"), sigterm_held_back():
        signal.raise_signal(signal.SIGTERM)
        raise OSError("full")


def test_other_threads_have_no_handlers() -> None:
    done = []

    def work() -> None:
        with sigterm_held_back():
            done.append("all")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["all"]


def test_why_a_process_ends_is_told_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a launcher ends all processes because one was lost, while this one says so."""

    def lost(argv: list[str]) -> int:
        raise UserError("a process was lost")

    settle = app.settle

    def settling(error: BaseException) -> int:
        signal.raise_signal(signal.SIGTERM)
        return settle(error)

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(app, "_run", lost)
    monkeypatch.setattr(app, "settle", settling)
    assert app.main([]) == 2
    assert capsys.readouterr().err.endswith("error: a process was lost\n")


@pytest.mark.parametrize("lost", [False, True])
def test_files_are_kept_though_it_comes_while_they_are_written(
    lost: bool, cli: Callable[..., Result], own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended well ends by the signal then, and one that an exception ended by that."""
    save, steps, made = RunOutput.save, Scheduler.step, 0

    def saving(output: RunOutput, *contents: Any, **others: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        save(output, *contents, **others)

    def step(scheduler: Scheduler) -> Any:
        nonlocal made
        made += 1
        if lost and made > 4:
            raise UserError("a process was lost")
        return steps(scheduler)

    monkeypatch.setattr(RunOutput, "save", saving)
    monkeypatch.setattr(Scheduler, "step", step)
    result = cli("pipeline=vanilla", "prompt=abc", "output_dir=out", "max_new_tokens=20")
    assert (result.status, result.err.rstrip().endswith("a process was lost")) == ((2, True) if lost else (143, False))
    assert "results in out" in result.err and (own_directory / "out" / "metrics.json").is_file()
