"""``task=export`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_heads import HeadSizes, write_eagle1, write_eagle3

TAPPED: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}


@pytest.fixture(autouse=True)
def model(own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    write_eagle3(own_directory / "head", HeadSizes(), **TAPPED)


def test_the_drafters_own_head_is_written_and_drafts(cli: Callable[..., Any], own_directory: Path) -> None:
    options = ("task=export", "pipeline=eagle_tree", "model.target=model", "drafter.checkpoint=head")
    done = cli(*options, "task.output=a/out", "task.target_name=org/tiny", "task.format=safeailab")
    assert done.status == 0 and done.out.strip() == "a/out", done.err
    assert "safeailab: eagle3, 3 tokens at a time" in done.err
    card = (own_directory / "a/out/README.md").read_text()
    assert "vllm serve org/tiny --speculative-config" in card and "--speculative-algorithm EAGLE3" in card
    assert sorted(path.name for path in (own_directory / "a").iterdir()) == ["out"]
    answers = [
        cli(
            "pipeline=eagle_tree",
            "model.target=model",
            f"drafter.checkpoint={head}",
            "prompt=a b c",
            "max_new_tokens=12",
        )
        for head in ("head", "a/out")
    ]
    assert answers[0].status == answers[1].status == 0 and answers[0].out == answers[1].out
    again = cli(*options, "task.output=a/out")
    assert again.status == 2 and "task.output: a/out is there already" in again.error


def test_acceptance_is_measured_when_asked_for(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "prompts.jsonl").write_text("".join(f'{{"prompt": "a b c w{i}"}}\n' for i in range(30, 36)))
    done = cli(
        *("task=export", "pipeline=eagle_tree", "model.target=model", "drafter.checkpoint=head", "task.output=out"),
        *("prompt_file=prompts.jsonl", "task.measure=4", "max_new_tokens=16", "ignore_eos=true"),
    )
    assert done.status == 0 and "measuring acceptance on 4 prompts" in done.err, done.err
    assert "Greedy acceptance was measured (on 4 prompts, when it was exported)" in Path("out/README.md").read_text()


def test_layers_that_the_drafter_names_are_written(cli: Callable[..., Any]) -> None:
    done = cli(
        *("task=export", "pipeline=eagle_tree", "model.target=model", "drafter.checkpoint=head", "task.output=out"),
        "drafter.target_layers=[0,2,4]",
    )
    assert done.status == 0, done.err
    assert json.loads(Path("out/config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "task.output: is not given"),
        (("task.output=out",), "drafter: 'suffix' has no files to export"),
        (("task.output=out", "task.input=nowhere"), "nowhere"),
        (("task.output=out", "task.input=./nowhere"), "nowhere"),
        (("task.output=out", "task.format=speculator"), "did you mean 'speculators'"),
        (("task.output=out", "task.input=one", "task.format=zlab"), "does not hold heads of eagle; use safeailab"),
        (("task.output=out", "task.input=head", "task.measure=2"), "name it with drafter.checkpoint"),
        (("task.output=model/config.json/out", "task.input=head"), "task.output"),
        (("task.output=out", "task.input=head", "task.depth=0"), "task.depth"),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...], words: str, cli: Callable[..., Any], own_directory: Path
) -> None:
    write_eagle1(own_directory / "one", HeadSizes())
    refused = cli("task=export", "model.target=model", *options)
    assert refused.status == 2 and words in refused.error, refused.err
    assert not Path("out").exists()
