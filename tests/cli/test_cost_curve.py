"""``task=cost_curve`` on a tiny checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture(autouse=True)
def model(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(own_directory / "cache"))
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", num_hidden_layers=4)


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if re.match(r"\s*\d+ ", line)]


def test_target_and_draft_model_are_shown_and_kept(cli: Callable[..., Any], own_directory: Path) -> None:
    result = cli("task=cost_curve", "pipeline=sd_chain", "model.target=model")
    assert result.status == 0, result.err
    assert "target: " in result.out and "draft model: " in result.out and "× one node" in result.out
    shown = rows(result.out)
    assert [row[0] for row in shown] == ["1", "2", "4", "8", "16", "32", "64"] * 2
    assert all(float(row[1]) > 0 and float(row[2]) >= 1 for row in shown)
    (file,) = (own_directory / "cache" / "costs").glob("*.json")
    kept = json.loads(file.read_text())
    assert kept["measured_s"] < 5 and str(file) in result.err
    # what a policy now finds is the same
    again = cli("task=cost_curve", "pipeline=sd_chain", "model.target=model", "task.kept=true")
    assert again.status == 0 and again.out == result.out


def test_a_drafter_without_a_model(cli: Callable[..., Any]) -> None:
    result = cli("task=cost_curve", "pipeline=prompt_lookup", "model.target=model")
    assert result.status == 0, result.err
    assert "target: " in result.out and "draft model" not in result.out


def test_adaptive_goes_by_it(cli: Callable[..., Any]) -> None:
    options = ["pipeline=easyspec_paper", "model.target=model", "prompt=a b c", "max_new_tokens=8", "policy=adaptive"]
    measured = cli(*options, "policy.costs=measure")
    assert measured.status == 0 and "policy: measured what passes cost in " in measured.err
    again = cli(*options, "policy.costs=measure")
    assert again.status == 0 and "policy: measured" not in again.err
    assert again.out == measured.out == cli(*options, "policy.costs=learn").out
    wrong = cli(*options, "policy.costs=mesure")
    assert wrong.status == 2 and wrong.error == "policy.costs: unknown value 'mesure', did you mean 'measure'?"
