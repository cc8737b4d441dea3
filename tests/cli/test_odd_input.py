"""Unusual paths, files and command lines: one line and status 2, and nothing of an earlier run is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.cli.jobs import report, status_of
from spec_sdk.errors import PluginFault
from spec_sdk.files import StagedFile, scratch_directory, write_atomically
from spec_sdk.run_output import RunOutput
from tests.support.tiny_checkpoints import write_checkpoint

LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prompt_file=/etc/passwd/x.txt"], "prompt_file: /etc/passwd/x.txt does not exist"),
        ([f"prompt_file={LONG}"], "… is too long"),
        (["prompt_file=~nosuchuser/x"], "prompt_file: ~nosuchuser/x"),
        (["output_dir=~nosuchuser/x", "prompt=a"], "output_dir: ~nosuchuser/x"),
        ([f"output_dir={LONG}", "prompt=a"], "is too long"),
        (["--shell-completion"], "--shell-completion: say one of install=bash, "),
        (["--shell-completion", "query=bash", "prompt=a"], "--shell-completion: say one of install=bash, "),
        (
            ["--shell-completion", "install=bsh"],
            "--shell-completion: install: unknown shell 'bsh', did you mean 'bash'",
        ),
        (["--shell-completion", "query=bash"], "--shell-completion: query is what the shell asks"),
        (["policy=[-1]"], "policy: [-1] is a list; choose one"),
        (["drafter=[0,1]"], "drafter: [0, 1] is a list; choose one"),
        (["drafter.width=" + "[" * 5000], "cannot be read as option=value"),
        ([f"{LONG}=1"], f"{'a' * 80}…: File name too long"),
        ([f"drafter={LONG}"], f"{'a' * 80}…: File name too long"),
        (["hydra.searchpath=5"], "hydra.searchpath: 5 is no list of directories"),
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


def test_a_list_in_a_list_of_layers(cli: Callable[..., Any], own_directory: Path) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    given = ("pipeline=alspec", f"model.target={model}", "prompt=a b", "max_new_tokens=2")
    wrong = {
        "[[]]": "[] must be 0 or more",
        "[a]": "['a'] is not a list of whole numbers",
        "[-1]": "-1 must be 0 or more",
    }
    for value, message in wrong.items():
        error = cli(*given, f"attention_verifier.never={value}").error
        assert error == f"attention_verifier.never: {message}"


def test_what_a_killed_run_left_is_removed_by_the_next(own_directory: Path) -> None:
    directories = (own_directory / "out", own_directory / "outputs" / "2026-01-01" / "12-00-00.000-suffix")
    abandoned = [directory / ".events.jsonl.abcd.partial" for directory in directories]
    for path in abandoned:
        path.parent.mkdir(parents=True)
        path.write_text("half an ev")
    live = StagedFile(own_directory / "out" / "events.jsonl")
    assert not abandoned[0].exists()
    abandoned[0].write_text("half an ev")
    for directory in ("out", "outputs/2026-01-02/x"):
        with RunOutput(Path(directory)) as output:
            output.events.write("{}\n")
            output.save({}, {})
    assert not any(path.exists() for path in abandoned)
    live.file.write("[]\n")
    live.publish()
    assert (own_directory / "out" / "events.jsonl").read_text() == "[]\n"


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from spec_sdk.files import StagedFile, scratch_directory\n"
        "top = pathlib.Path(sys.argv[1]); staged = StagedFile(top / 'a'); made = scratch_directory(top, '.b-')\n"
        "made.__enter__(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    StagedFile(tmp_path / "a").discard()
    with scratch_directory(tmp_path, ".b-") as made, scratch_directory(tmp_path, ".b-") as other:
        assert made.exists() and sorted(tmp_path.iterdir()) == sorted((made, other))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    staged = StagedFile(tmp_path / "metrics.json")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, staged.file.fileno())
    os.close(full)
    staged.file.write("{}")
    with pytest.raises(OSError) as refused:
        staged.finish()
    staged.discard()
    assert status_of(refused.value) == 2
    assert report(refused.value) == f"no space left on the device for {tmp_path / 'metrics.json'}"
    assert not list(tmp_path.iterdir())


def test_a_plugins_fault_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    fault = PluginFault("verifier 'mine': it returned None, and no list of verdicts")
    assert status_of(fault) == 1
    report(fault)
    assert capsys.readouterr().err == f"error: {fault}\n"


def test_a_chain_verifier_beside_a_tree_drafter_is_refused(cli: Callable[..., Any], own_directory: Path) -> None:
    model = own_directory / "model"
    model.mkdir()
    write_checkpoint(model)
    given = (f"model.target={model}", "verifier=chain_rejection", "prompt=a b", "max_new_tokens=4")
    refused = cli("pipeline=easyspec_paper", *given)
    assert refused.status == 2
    takes = "verifier: 'chain_rejection' takes chains, and drafter "
    width = "'easyspec' drafts trees; use verifier=multi_step, or make it a chain (drafter.width=1)"
    assert refused.error == takes + width
    always = "'suffix' drafts trees; use verifier=multi_step, or another drafter: this one drafts trees whatever its "
    assert cli("pipeline=suffix", *given).error == f"{takes}{always}options"
    matches = "'prompt_lookup' drafts trees; use verifier=multi_step, or options with which it drafts chains"
    assert cli("pipeline=prompt_lookup", "drafter.matches=2", *given).error == takes + matches
    assert not (own_directory / "outputs").exists()
    chain = cli("pipeline=easyspec_paper", *given, "drafter.width=1")
    assert chain.status == 0


def test_a_dollar_and_brace_for_what_is_no_text(cli: Callable[..., Any]) -> None:
    result = cli("prompt=a", r"error_bounds=\${b}")
    assert (result.status, result.error) == (2, "error_bounds: '${b}' is of the wrong type")


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="There is something else than a file"):
        write_atomically(pipe, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"] and not pipe.is_file()
