"""``task=needle`` on a tiny checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec_sdk import needles
from tests.support.text_checkpoints import write_text_checkpoint

SHORT = ["task.hashes=2", "task.facts=1", "task.max_new_tokens=60", "output_dir=out"]


@pytest.fixture
def model(own_directory: Path) -> str:
    (own_directory / "model").mkdir()
    write_text_checkpoint(own_directory / "model", max_position_embeddings=1024)
    return "model.target=model"


def test_a_run_with_speculation_beside_plain_decoding(cli: Callable[..., Any], own_directory: Path, model: str) -> None:
    options = ["pipeline=alspec", "predictor.size=32", "attention_verifier.threshold=inf", "compare=true"]
    result = cli("task=needle", model, *SHORT, "task.context=600", "task.texts=2", "task.seed=3", *options)
    assert result.status == 0, result.err
    assert result.out == ""
    for line in (
        "alspec, text 2 of 2",
        "vanilla, text 1 of 2",
        "hashes found",
        "NLL of facts",
        "100.0 %",
        "results in out",
    ):
        assert line in result.err
    assert re.search(r"guarantee +relaxed +exact", result.err)

    kept = json.loads((own_directory / "out" / "needle.json").read_text())
    assert kept["pipeline"] == "alspec" and kept["task"]["context"] == 600 and kept["guarantee"] == "relaxed"
    assert [text["seed"] for text in kept["texts"]] == [3, 4]
    assert kept["summary"]["hash"]["asked"] == 4 and kept["summary"]["fact"]["asked"] == 2
    assert kept["summary"]["all"]["hit_rate_scoring"] == 1
    plain = kept["comparison"]["vanilla"]
    assert plain["summary"]["all"]["hit_rate_scoring"] is None
    assert plain["summary"]["all"]["nll"] != kept["summary"]["all"]["nll"]
    for text in kept["texts"]:
        assert 500 < text["prompt_tokens"] <= 600
        nlls = [answer["nll"] for answer in text["answers"]]
        assert len(nlls) == 3 and all(nll > 0 for nll in nlls)
    total = sum(answer["nll"] for text in kept["texts"] for answer in text["answers"])
    assert kept["summary"]["all"]["nll"] == pytest.approx(total / 6)
    config = yaml.safe_load((own_directory / "out" / "config.yaml").read_text())
    assert config["attention_verifier"]["threshold"] == float("inf")


def test_an_interrupted_run_keeps_the_texts_that_were_asked_about(
    cli: Callable[..., Any], own_directory: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, asked = needles.measure, list[str]()

    def interrupted(pipeline: Any, *arguments: Any, **options: Any) -> Any:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(pipeline.name)
        return measure(pipeline, *arguments, **options)

    monkeypatch.setattr(needles, "measure", interrupted)
    result = cli("task=needle", model, *SHORT, "task.context=600", "task.texts=3", "pipeline=suffix", "compare=true")
    assert result.status == 130 and asked == ["suffix", "vanilla", "suffix"]
    assert "1 of 3 texts" in result.err and "results in out" in result.err
    kept = json.loads((own_directory / "out" / "needle.json").read_text())
    assert len(kept["texts"]) == len(kept["comparison"]["vanilla"]["texts"]) == 1
    assert kept["summary"]["hash"]["asked"] == 2


def test_a_text_of_the_users(cli: Callable[..., Any], own_directory: Path, model: str) -> None:
    lines = [json.dumps({"prompt": f"Tell me about number {i}, please. It matters."}) for i in range(40)]
    (own_directory / "prompts.jsonl").write_text("\n".join(lines))
    options = ["task.text=prompts.jsonl", "task.facts=0", "chat=false"]
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.context=500", *options)
    assert result.status == 0, result.err
    assert "facts found" not in result.err
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.context=900", "task.text=prompts.jsonl")
    assert result.status == 0, result.err
    (own_directory / "short.txt").write_text("Hardly anything. Not much.")
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.context=900", "task.text=short.txt")
    assert result.status == 2 and "task.context: 900 is more than the text gives" in result.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.context=0"], "task.context: 0 must be 1 or more"),
        (["task.texts=0"], "task.texts: 0 must be 1 or more"),
        (["task.seed=-1"], "task.seed: -1 must be 0 or more"),
        (["task.hashes=-1"], "task.hashes: -1 must be 0 or more"),
        (
            ["task.hashes=0", "task.facts=0"],
            "task.hashes: with task.facts=0 there is nothing to ask for; use 1 or more",
        ),
        (["task.text=nowhere.txt"], "task.text: nowhere.txt does not exist"),
        (["task.text=-"], "task.text: - is not read; give a file"),
        (["task.text="], "task.text: it names no file"),
        (["task.text=empty.txt"], "task.text: empty.txt is empty"),
        (["task.text=half.jsonl"], "task.text: half.jsonl line 1: no valid Unicode text (character 2)"),
        (
            ["prompt=Hi"],
            "prompt: task=needle asks its own questions; the text to hide needles in is task.text=FILE",
        ),
        (["sampling.temperature=1"], "sampling.temperature: 1.0 must be 0: task=needle answers greedily"),
        (["task.needles=3"], "task.needles: unknown option of task 'needle', did you mean 'seed'?"),
    ],
)
def test_bad_options_are_refused(
    cli: Callable[..., Any], own_directory: Path, options: list[str], message: str
) -> None:
    (own_directory / "empty.txt").write_text(" \n")
    (own_directory / "half.jsonl").write_text('{"prompt": "a \\ud800 b"}\n')
    result = cli("task=needle", "pipeline=vanilla", *options)
    assert result.status == 2 and result.error == message
    assert not (own_directory / "outputs").exists()


def test_a_context_that_the_model_does_not_have(cli: Callable[..., Any], model: str) -> None:
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.context=1000")
    assert result.status == 2
    assert result.error == (
        "task.context: 1000 and task.max_new_tokens=60 exceed model's context of 1024; use task.context=964 or less"
    )
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.max_new_tokens=1024")
    assert result.status == 2
    assert result.error == "task.max_new_tokens: 1024 leaves no room for a prompt in model's context of 1024"
    result = cli("task=needle", "pipeline=vanilla", model, *SHORT, "task.context=50")
    assert result.status == 2 and "task.context: 50 is too short for 3 needles; the least is " in result.error
