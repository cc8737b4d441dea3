"""``task=tune_layers`` on a tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tiny_checkpoints import write_checkpoint


def test_a_strategy_is_found_written_and_usable(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", num_hidden_layers=9)
    (own_directory / "prompts.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n{"prompt": "f"}\n')
    common = ["pipeline=easyspec_paper", "model.target=model", "prompt_file=prompts.jsonl"]
    options = ["task.prompts=2", "task.tokens=9", "task.positions=4", "task.max_size=3", "output_dir=out"]
    result = cli("task=tune_layers", *common, *options)
    assert result.status == 0, result.err
    assert "step 0: " in result.err and "easyspec, size 3" in result.err and "does not draft with" not in result.err

    [override] = result.out.split()
    assert override.startswith("drafter.groups=[[0")
    node = yaml.safe_load((own_directory / "out" / "drafter" / "tuned.yaml").read_text())
    assert node["name"] == "easyspec" and node["width"] == 4
    layers = [layer for group in node["groups"] for layer in group]
    # two of every three of the target's nine layers, and the last
    assert layers == list(range(7))
    tuning = json.loads((own_directory / "out" / "tuning.json").read_text())
    assert tuning["best"]["groups"] == node["groups"]
    assert tuning["path"][0]["groups"] == [[layer] for layer in layers]
    assert tuning["best"]["tokens_per_second"] == max(
        strategy["tokens_per_second"] for strategy in [*tuning["path"], *tuning["easyspec"].values()]
    )
    assert set(tuning["times_s"]["saved_by_group_size"]) == {"2", "3"}

    short = [*common, "max_new_tokens=3", "prompt_limit=1"]
    texts = [cli(*short, *use).out for use in (["--config-dir", "out", "drafter=tuned"], [override], ["drafter=none"])]
    assert texts[0] == texts[1] == texts[2] != ""


def test_groups_of_a_model_that_the_pipeline_does_not_draft_with_are_said_to_be(
    cli: Callable[..., Any], own_directory: Path
) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", num_hidden_layers=9)
    options = ["task.prompts=1", "task.tokens=6", "task.positions=1", "task.max_size=2", "output_dir=out"]
    result = cli("task=tune_layers", "pipeline=suffix", "model.target=model", "prompt=a b c", *options)
    assert result.status == 0, result.err
    [line] = [line for line in result.err.splitlines() if line.startswith("pipeline=suffix does not draft with ")]
    assert line.endswith(": its groups are for drafter=easyspec")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("task.prompts=0", "task.prompts: 0 must be 1 or more"),
        ("task.max_size=1", "task.max_size: 1 must be 2 or more"),
        ("task.candidates=-1", "task.candidates: -1 must be 0 (all) or more"),
        ("task.tokens=4", "task.tokens: 4 must be 5 (policy.depth) or more"),
        ("policy.depth=1", "policy.depth: 1 must be 2 or more for task=tune_layers: the first token is precise"),
    ],
)
def test_bad_options_are_refused(cli: Callable[..., Any], option: str, message: str) -> None:
    result = cli("task=tune_layers", "pipeline=easyspec_paper", "prompt=a", option)
    assert result.status == 2 and result.error == message


def test_a_tree_wider_than_the_vocabulary_is_tuned_for_too(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model", num_hidden_layers=4)
    options = ["task.tokens=6", "task.positions=2", "task.max_size=2", "output_dir=out", "drafter.width=200"]
    result = cli("task=tune_layers", "pipeline=easyspec_paper", "model.target=model", "prompt=a b c", *options)
    assert result.status == 0, result.err
