"""``task=watch`` on a tiny checkpoint."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spec_sdk.api.step import NewToken, Node, Step
from spec_sdk.step_drawing import answer_drawing, step_drawing
from tests.support.text_checkpoints import write_text_checkpoint

RUN = ("pipeline=easyspec_paper", "model.target=model", "prompt=Why is the sky blue?", "max_new_tokens=30")
OPTIONS = ("sampling.repetition_penalty=1.3", "ignore_eos=true", "policy=fixed", "policy.depth=3")


@pytest.fixture
def model(own_directory: Path) -> Path:
    (own_directory / "model").mkdir()
    write_text_checkpoint(own_directory / "model")
    return own_directory


def test_steps_one_below_the_other(cli: Callable[..., Any], model: Path) -> None:
    result = cli("task=watch", *RUN, *OPTIONS)
    assert result.status == 0, result.err
    plain = cli(*RUN, *OPTIONS, "output_dir=out")
    assert plain.status == 0 and plain.out.strip() in result.out
    lines = result.out.rstrip("\n").splitlines()
    assert lines[-1].startswith("30 tokens in ")
    passes = int(lines[-1].split()[3])
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == [f"step {number}" for number in range(1, passes + 1)]
    # a mark for every token of the answer: accepted nodes but for the roots, and the target's own
    marked = [line.lstrip("│├└─ ") for line in lines[: lines.index(steps[-1])]]
    accepted = sum(line.startswith("* ") for line in marked) - (passes - 1)
    own = sum(line.startswith("+ ") for line in marked)
    told = [[int(part.split()[0]) for part in line.split(": ")[1].split(", ") if "accepted" in part] for line in steps]
    assert accepted == sum(sum(counts) for counts in told[:-1]) and own == passes - 1
    assert accepted > 0


def test_a_terminal_gets_a_picture_that_changes(
    cli: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    result = cli("task=watch", *RUN, *OPTIONS)
    assert result.status == 0
    assert "\x1b[2K" in screen.getvalue() and "per pass; acceptance rate" in screen.getvalue()


def test_a_terminal_is_shown_nothing_that_it_would_obey() -> None:
    token = NewToken(7, "\x1b[2J", "\x1b[2J\u202e", "plain", None, 0.5)
    root = Node(3, "\x1b]0;x\x07", None, [], None, None)
    step = Step(1, 0, 4, [root], [0], [token], 0.0, 0.1, 0.0, None)
    screen = io.StringIO()
    Console(file=screen, color_system=None, width=80).print(answer_drawing([step], True), step_drawing(step))
    assert all(c.isprintable() or c == "\n" for c in screen.getvalue())
    assert answer_drawing([step], False).plain == "\x1b[2J\u202e"


def test_a_bad_pause_is_refused(cli: Callable[..., Any]) -> None:
    result = cli("task=watch", "task.pause=-1", "prompt=a")
    assert result.status == 2 and result.error == "task.pause: -1.0 must be 0 or more"
