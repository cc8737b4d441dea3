"""Unusual paths, files and command lines: one line and status 2, and nothing of an earlier run is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.run_output import RunOutput
from tests.support.tiny_checkpoints import write_checkpoint

LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prompt_file=/etc/passwd/x.txt"], "prompt_file: /etc/passwd/x.txt cannot be read: Not a directory"),
        ([f"prompt_file={LONG}"], "cannot be read: File name too long"),
        (["prompt_file=~nosuchuser/x"], "prompt_file: ~nosuchuser/x"),
        (["output_dir=~nosuchuser/x", "prompt=a"], "output_dir: ~nosuchuser/x"),
        ([f"output_dir={LONG}", "prompt=a"], "is too long"),
        (["drafter=null", "max_new_tokens=8", "prompt=a"], "drafter: None is no name"),
    ],
)
def test_paths_and_choices(cli: Callable[..., Any], fake: Any, arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.status == 2 and message in result.error


@pytest.mark.parametrize("line", ["[" * 100_000, '{"prompt": ' + "1" * 5000 + "}"])
def test_json_that_python_cannot_read(cli: Callable[..., Any], fake: Any, own_directory: Path, line: str) -> None:
    (own_directory / "p.jsonl").write_text(line)
    result = cli("prompt_file=p.jsonl")
    assert result.status == 2 and "p.jsonl line 1: " in result.error


def test_a_byte_order_mark_and_a_null_prompt(cli: Callable[..., Any], fake: Any, own_directory: Path) -> None:
    (own_directory / "p.jsonl").write_text('\ufeff{"prompt": null, "turns": ["Why?"]}\n', encoding="utf-8")
    assert cli("prompt_file=p.jsonl", "max_new_tokens=4", "output_dir=out").status == 0
    assert json.loads((own_directory / "out" / "metrics.json").read_text())["prompts"][0]["prompt_tokens"] > 0


def test_flags_may_stand_between_overrides(cli: Callable[..., Any], fake: Any) -> None:
    result = cli("pipeline=vanilla,sd_chain", "--multirun", "prompt=hi", "max_new_tokens=4")
    assert result.status == 0


def test_a_run_that_fails_leaves_an_earlier_run_alone(tmp_path: Path) -> None:
    with RunOutput(tmp_path / "out") as output:
        output.events.write("{}\n")
        output.save({"run": 1}, {"run": 1})
    before = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert sorted(before) == ["config.yaml", "events.jsonl", "metrics.json"]
    with pytest.raises(ValueError), RunOutput(tmp_path / "out") as output:
        output.events.write("half of an event")
        output.save({"rate": float("nan")}, {"run": 2})
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == before


def test_two_runs_into_one_directory_both_end_well(tmp_path: Path) -> None:
    with RunOutput(tmp_path / "out") as first, RunOutput(tmp_path / "out") as second:
        for number, output in enumerate((first, second)):
            output.events.write(f"{number}\n")
        first.save({"run": 0}, {})
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == {"run": 0}
    assert (tmp_path / "out" / "events.jsonl").read_text() == "0\n"
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_chain_verifier_beside_a_tree_drafter_is_refused(cli: Callable[..., Any], own_directory: Path) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    given = (f"model.target={model}", "verifier=chain_rejection", "prompt=a b", "max_new_tokens=4")
    refused = cli("pipeline=easyspec_paper", *given)
    assert refused.status == 2 and "takes chains, and drafter 'easyspec' drafts trees" in refused.error
    assert not (own_directory / "outputs").exists()
    chain = cli("pipeline=easyspec_paper", *given, "drafter.width=1")
    assert chain.status == 0
