"""``benchmarks.quick`` on parts that measure nothing: what it prints, keeps and ends with; and its parts, once, on a
tiny model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks.quick.__main__ as quick
from benchmarks import draft_level
from benchmarks.quick import parts
from benchmarks.quick.parts import Setting
from benchmarks.support.disturbance import Others
from benchmarks.support.ratios import Ratio
from spec_sdk.bench.timing import times_of
from spec_sdk.errors import UserError
from tests.support.text_checkpoints import write_text_checkpoint

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Ratio]]:
    """What the parts give."""
    found = {"one": {"a": Ratio(2.0, 0.01, 8), "b": Ratio(1.0, 0.01, 8)}, "two": {"c": Ratio(3.0, 0.01, 8)}}

    def part(name: str) -> Callable[[Setting], Mapping[str, Ratio]]:
        return lambda _: found[name]

    monkeypatch.setattr(quick, "PARTS", {name: part(name) for name in found})
    monkeypatch.setattr(quick, "source_commit", lambda: "abc")
    monkeypatch.setattr(Others, "share", lambda _: 0.0)
    return found


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    write_text_checkpoint(tmp_path / "model")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = quick.main([*arguments, "--results", str(tmp_path / "quick"), f"model.target={tmp_path / 'model'}"])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def test_what_moved_is_said_and_fails_only_where_asked(
    measured: dict[str, dict[str, Ratio]], run: Run, tmp_path: Path
) -> None:
    status, out, err = run("--keep", "--strict")
    assert status == 0 and "nothing is kept of this class of machine; --keep keeps this run" in err
    assert "0 of 0 moved beyond noise" in out and out.count("new") == 3
    (path,) = (tmp_path / "quick").iterdir()
    assert f"written: {path}" in out
    measured["one"]["a"] = Ratio(1.0, 0.01, 8)
    measured["one"]["b"] = Ratio(1.02, 0.01, 8)
    status, out, err = run()
    assert status == 0 and "nothing is kept" not in err
    assert "1 of 3 moved beyond noise; one: a: slower" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("one: a ")]
    assert row[2:] == ["1.00", "2.00", "-50.0%", "±", "4.3%", "slower"]
    assert run("--strict")[0] == 1
    measured["one"]["a"] = Ratio(4.0, 0.01, 8)
    status, out, _ = run("--strict")
    assert status == 0 and "one: a: faster" in out


def test_a_part_alone_is_compared_and_kept_alone(
    measured: dict[str, dict[str, Ratio]], run: Run, tmp_path: Path
) -> None:
    run("--keep")
    measured["one"] = {"a": Ratio(2.5, 0.01, 8)}
    status, out, _ = run("--only", "two", "--strict")
    assert status == 0 and "one: " not in out and "0 of 1 moved" in out
    status, out, _ = run("--only", "one", "--strict", "--keep")
    assert status == 1 and "one: a: faster" in out and "gone" in out
    (path,) = (tmp_path / "quick").iterdir()
    kept = json.loads(path.read_text())["ratios"]
    assert {name: [one["ratio"] for one in runs] for name, runs in kept.items()} == {
        "one: a": [2.0, 2.5],
        "two: c": [3.0],
    }
    assert kept["two: c"][0]["commit"] == "abc"


def test_what_was_measured_beside_others_is_said_and_not_kept(
    measured: dict[str, dict[str, Ratio]], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5, 0.05])
    monkeypatch.setattr(Others, "share", lambda _: next(shares))
    status, out, err = run("--keep")
    assert status == 0 and "one: 0 s; other programs had 50% of the cores" in err
    assert "not kept, because others were at work: one\n" in out
    (path,) = (tmp_path / "quick").iterdir()
    assert list(json.loads(path.read_text())["ratios"]) == ["two: c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "1"], "--rounds: noise is known from repeats, so at least 2"),
        (["--only", "three"], "invalid choice: 'three'"),
    ],
)
def test_wrong_options_are_refused(
    measured: dict[str, dict[str, Ratio]],
    run: Run,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def longer(timed: Callable[..., dict[str, list[float]]], which: str, seconds: float) -> Callable[..., Any]:
    """``timed``, with so many seconds more of one of the calls."""

    def of(*arguments: Any, **options: Any) -> dict[str, list[float]]:
        times = timed(*arguments, **options)
        return {**times, which: [one + seconds for one in times[which]]}

    return of


def test_a_level_that_takes_no_time_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_checkpoint(tmp_path / "model", num_hidden_layers=2)
    monkeypatch.setattr(draft_level, "TOKENS", [1] * 20)
    monkeypatch.setattr(parts, "TOKENS", [1] * (parts.PREFIX + 1))
    monkeypatch.setattr(parts, "times_of", lambda calls, *rest, **options: {name: [1.0] * 12 for name in calls})
    options = ("pipeline=sd_chain", "model.draft=cut", "model.draft_layers=[0]")
    with pytest.raises(UserError, match="took no longer than those of one"):
        parts._level(options, Setting(2, 0.0, (f"model.target={tmp_path / 'model'}",)))


@pytest.mark.parametrize("name", list(parts.PARTS))
def test_every_part_measures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it measures is nothing on such a model; that every pipeline, pass and sampler runs is."""
    write_text_checkpoint(tmp_path / "model", num_hidden_layers=4, max_position_embeddings=4096)
    for module in (parts, draft_level):
        monkeypatch.setattr(module, "TOKENS", [1 + 7 * i % 100 for i in range(len(module.TOKENS))])
    monkeypatch.setattr(parts, "NEW_TOKENS", 6)
    monkeypatch.setattr(parts, "COUNT", 2)
    monkeypatch.setattr(
        parts, "DRAFTERS", {"cut": ("pipeline=sd_chain", "model.draft=cut", "model.draft_layers=[0,3]")}
    )
    monkeypatch.setattr(parts, "VOCABULARY", 100)
    if name == "drafting":
        # a level's time is a difference, and on a busy machine a deep draft of such a model may be the quicker one
        monkeypatch.setattr(parts, "times_of", longer(times_of, "deep", 60.0))
    setting = Setting(2, 0.0, (f"model.target={tmp_path / 'model'}", "backend.threads=1"))
    ratios = parts.PARTS[name](setting)
    assert ratios and all(ratio.value > 0 and ratio.samples >= 2 for ratio in ratios.values())
    assert torch.is_grad_enabled()
