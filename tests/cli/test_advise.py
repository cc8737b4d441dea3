"""``task=advise`` on a tiny checkpoint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec_sdk.model.source_cache import cache_root
from spec_sdk_drafters.prompt_lookup import PromptLookup
from tests.checkpoints.gguf_modules import write_with_module
from tests.support.tiny_checkpoints import write_checkpoint

TARGET = ("model.target=model", "chat=false")


@pytest.fixture(autouse=True)
def model(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # native kernels are compiled once on a machine, and not for this
    (own_directory / "cache").mkdir()
    (cache_root() / "native").mkdir(parents=True, exist_ok=True)
    (own_directory / "cache" / "native").symlink_to(cache_root() / "native")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(own_directory / "cache"))
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", num_hidden_layers=4)
    lines = [json.dumps({"prompt": text}) for text in ("a b c a b c a b", "w1 w2 w3 w1", "d e f")]
    (own_directory / "prompts.jsonl").write_text("\n".join(lines))


def advise(cli: Callable[..., Any], *options: str) -> Any:
    return cli(
        "task=advise", *TARGET, "prompt_file=prompts.jsonl", "max_new_tokens=24", "task.seconds=2", "ignore_eos=true",
        "output_dir=out", *options,
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_predicts_checks_and_writes_a_pipeline(
    cli: Callable[..., Any], own_directory: Path, temperature: float
) -> None:
    """Four ways of drafting; what is advised runs by the command that it prints."""
    drafters = "['prompt_lookup','suffix','sd_chain drafter.width=2 model.draft=cut model.draft_layers=[0,2]']"
    result = advise(cli, f"task.candidates={drafters}", f"sampling.temperature={temperature}")
    assert result.status == 0, result.err
    assert "Predicted" in result.out and "Checked" in result.out
    assert "Advised: " in result.out or "Plain decoding is best here" in result.out
    found = json.loads((own_directory / "out" / "advise.json").read_text())
    assert {row["candidate"].split()[0] for row in found["candidates"]} == {"prompt_lookup", "suffix", "sd_chain"}
    # how many there are in task.seconds hangs on the machine
    assert len(found["verification"]) == 2 and found["plain"]["tokens"] > 0
    tree = next(row for row in found["candidates"] if row["candidate"].startswith("sd_chain"))
    assert {(shape["depth"], shape["width"]) for shape in tree["shapes"]} >= {(1, 1), (8, 1)}
    assert all(shape["speedup"] > 0 for row in found["candidates"] for shape in row["shapes"])
    command = result.out.strip().splitlines()[-1]
    assert command == found["command"] and command.startswith("python -m spec_sdk --config-dir out pipeline=advised")
    ran = cli(*command.split()[3:], "chat=false", "prompt=a b c a b", "max_new_tokens=8", "output_dir=ran")
    assert ran.status == 0, ran.err
    assert json.loads((own_directory / "ran" / "metrics.json").read_text())["pipeline"] == "advised"


def test_the_yaml_has_what_was_found_fastest(cli: Callable[..., Any], own_directory: Path) -> None:
    """The tree's shape stands there; greedy tokens are those of plain decoding."""
    result = advise(cli, "task.candidates=['layer_skip_tree drafter.layers=3']")
    assert result.status == 0, result.err
    found = json.loads((own_directory / "out" / "advise.json").read_text())
    written = yaml.safe_load((own_directory / "out" / "pipeline" / "advised.yaml").read_text())
    assert written["pipeline"]["name"] == "advised"
    (row,) = found["candidates"]
    if found["advised"] == "vanilla":
        assert {"override /drafter": "none"} in written["defaults"]
    elif row["tree"] != "adaptive":
        assert written["policy"]["max_nodes"] == 1 + row["depth"] * row["width"]
        assert written["drafter"]["layers"] == 3


def test_answers_are_held_to_the_constraint_and_so_is_the_command(cli: Callable[..., Any], own_directory: Path) -> None:
    held = ["constraint=tokens", "constraint.allowed=[5,6]", "forced_tokens=false"]
    result = advise(cli, "task.candidates=[prompt_lookup]", *held)
    assert result.status == 0, result.err
    command = result.out.strip().splitlines()[-1]
    assert all(option in command for option in held)
    ran = cli(*shlex.split(command)[3:], "chat=false", "prompt=a b c a b", "max_new_tokens=8", "output_dir=ran")
    assert ran.status == 0, ran.err
    metrics = json.loads((own_directory / "ran" / "metrics.json").read_text())
    assert set(metrics["prompts"][0]["token_ids"]) <= {5, 6}


def test_a_prompt_that_is_too_long_is_named_by_its_place(cli: Callable[..., Any], own_directory: Path) -> None:
    lines = [json.dumps({"prompt": text}) for text in ("a b", "a " * 3000, "d e f")]
    (own_directory / "prompts.jsonl").write_text("\n".join(lines))
    result = advise(cli, "task.candidates=[suffix]")
    assert result.status == 2 and "prompt 2 of 3: " in result.err


def test_those_that_cannot_be_built_are_left_out_of_our_own_choice(cli: Callable[..., Any]) -> None:
    result = advise(cli, "task.seconds=1")
    assert result.status == 0, result.err
    assert "Left out: eagle_tree: " in result.out and "Left out: mtp_chain: " in result.out
    assert "easyspec_tree" not in result.out


def test_the_prediction_module_of_a_gguf_file_is_tried(cli: Callable[..., Any], own_directory: Path) -> None:
    write_with_module(own_directory / "m.gguf", "qwen35")
    result = advise(cli, "model.target=m.gguf", "task.seconds=1")
    assert result.status == 0, result.err
    assert "Left out: eagle_tree: " in result.out and "Left out: mtp_chain: " not in result.out
    found = json.loads((own_directory / "out" / "advise.json").read_text())
    assert "mtp_chain" in [row["candidate"] for row in found["candidates"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.candidates=[sufix]"], "task.candidates: pipeline: unknown pipeline 'sufix', did you mean 'suffix'?"),
        (["task.candidates=[]"], "task.candidates: plain decoding is measured in any case; name others"),
        (["task.candidates=[vanilla]"], "task.candidates: plain decoding is measured in any case; name others"),
        (["task.candidates=[3]"], "task.candidates: [3] must be a list of pipelines; task=plugins lists them"),
        (["task.candidates=[suffix,suffix]"], "task.candidates: 'suffix' stands there twice"),
        (["task.candidates=['suffix drafter.widht=2']"], "task.candidates: drafter.widht: unknown option"),
        (["task.candidates=['eagle_tree']"], "task.candidates: eagle_tree: drafter.checkpoint: "),
        (["task.candidates=[suffix]", "drafter=mixed"], "drafter: task.candidates says what is compared"),
        (["task.seconds=0"], "task.seconds: 0.0 must be above 0"),
    ],
)
def test_bad_input_is_one_line(cli: Callable[..., Any], options: list[str], message: str) -> None:
    result = advise(cli, *options)
    assert result.status == 2
    assert result.error.startswith(message), result.error


def test_speech_is_refused(cli: Callable[..., Any]) -> None:
    result = cli("task=advise", *TARGET, "audio=a.wav")
    assert result.status == 2
    assert result.error == "audio: task=advise answers texts; give prompts by prompt_file"


def test_what_a_drafter_raises_leaves_it_alone_out(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(drafter: object, *arguments: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(PromptLookup, "propose", failing)
    result = advise(cli, "task.candidates=[prompt_lookup,suffix]")
    assert result.status == 0, result.err
    assert "Left out: prompt_lookup: KeyError: 'lost'" in result.out and "Predicted" in result.out
