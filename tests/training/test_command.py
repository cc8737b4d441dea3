"""``task=train_draft`` from nothing to a draft model that a pipeline uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from spec_sdk.model.tokenizer import Tokenizer
from tests.training.conftest import QUICK


def test_a_draft_model_learns_its_target_s_language(cli: Callable[..., Any], place: Path) -> None:
    # sampled answers: greedy ones of a random model soon repeat themselves
    longer = ("task.tokens=3500", "task.batch=32", "task.steps=50", "task.evaluate_every=25", "task.temperature=[0,1]")
    model = ("task.learning_rate=0.003", "task.vocabulary=300", "task.stored=int4", "task.labels=64")
    done = cli(*QUICK, *longer, *model)
    assert done.status == 0, done.err
    assert done.out == "model.draft=draft\n"
    kept = json.loads((place / "draft" / "training.json").read_text())
    untrained, trained = kept["curve"][0], kept["curve"][-1]
    assert [point["step"] for point in kept["curve"]] == [0, 25, 50]
    assert trained["loss"] < 0.5 * untrained["loss"]
    assert trained["mean_accepted_tokens_sampled"] > untrained["mean_accepted_tokens_sampled"] + 0.2
    assert 3500 <= kept["data"]["answer_tokens"] < 3500 + 40
    card = (place / "draft" / "README.md").read_text()
    assert "| trained |" in card and "layers of the target | [0, 2]" in card and "License" in card
    assert "| answers | 1 of 2 greedy, 1 of 2 at temperature 1 |" in card
    assert "<svg" in (place / "draft" / "training.svg").read_text()

    # what was measured is what a pipeline does: the same target, the same answers
    asked = ("pipeline=sd_chain", "model.target=model", "backend.native=false", "prompt=What is", "max_new_tokens=40")
    runs = {}
    for name, options in {
        "trained": ["model.draft=draft"],
        "cut": ["model.draft=cut", "model.draft_layers=[0,2]"],
        "plain": ["drafter=none"],
    }.items():
        assert cli(*asked, *options, "ignore_eos=true", f"output_dir={name}").status == 0
        runs[name] = json.loads((place / name / "metrics.json").read_text())
    texts = {name: run["prompts"][0]["text"] for name, run in runs.items()}
    assert texts["trained"] == texts["plain"]

    # the same training, stored to draft fewer tokens
    fewer = cli(*QUICK, *longer, *model, "task.drafted_vocabulary=40")
    assert fewer.status == 0 and "training goes on after step 50 of 50" in fewer.err
    assert len(load_file(place / "draft" / "model.safetensors")["draft_vocabulary"]) == 40
    card = (place / "draft" / "README.md").read_text()
    assert "tokens that it can draft | 40 |" in card and "measured with | 300 tokens" in card


def test_answers_without_openings_end_with_the_prompts(cli: Callable[..., Any], place: Path) -> None:
    lines = [json.dumps({"turns": [f"Tell me {what}."]}) for what in ("this", "that", "more", "less")]
    (place / "few.jsonl").write_text("\n".join(lines))
    options = ("task.only=data", "task.prompts=few.jsonl", "task.openings=null")
    done = cli(*QUICK, *options)
    assert done.status == 0 and "there are no more prompts" in done.err
    manifest = json.loads((place / "draft-training" / "data" / "manifest.json").read_text())
    assert manifest["samples"] == 4 and manifest["kinds"] == {"few": 4}
    held_out = cli(*QUICK, *options, "task.held_out_prompts=few.jsonl", "task.held_out=0", "task.data=other")
    assert held_out.status == 0
    manifest = json.loads((place / "other" / "manifest.json").read_text())
    assert (manifest["samples"], manifest["held_out"]) == (8, 4)
    # what is there is not answered again
    again = cli(*QUICK, *options)
    assert again.status == 0 and "of 4 answers" in again.err


def test_a_target_that_writes_no_prompts_is_no_endless_run(
    cli: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "")
    done = cli(*QUICK, "task.prompt_tokens=1", "task.batch=20")
    assert done.status == 2 and "ended 200 prompts in a row where they began" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.output=null"], "task.output: name the directory"),
        (["task.layers=4"], "task.layers: 4 must be between 1 and 3"),
        (["task.layers=[2,1]"], "task.layers: [2, 1] must be a number of layers, or increasing layers"),
        (["task.vocabulary=64", "task.whole=true"], "task.vocabulary: a draft model of fewer tokens"),
        (["task.drafted_vocabulary=64", "task.whole=true"], "task.drafted_vocabulary: a draft model of fewer tokens"),
        (["task.vocabulary=64", "task.drafted_vocabulary=65"], "task.drafted_vocabulary: 65 tokens are more than"),
        (["task.vocabulary=999"], "task.vocabulary: 999 tokens are more than model has, 480"),
        (["task.drafted_vocabulary=999"], "task.drafted_vocabulary: 999 tokens are more than model has, 480"),
        (["task.layers=some"], "task.layers: 'some' must be"),
        (["task.mlp_size=999"], "task.mlp_size: 999 is more than the target's 80"),
        (["task.kv_heads=3"], "task.kv_heads: 3 is more than the target's 2"),
        (["task.openings=nowhere.yaml"], "many_kinds comes with spec-sdk"),
        (["task.openings=bad.yaml"], "task.openings: bad.yaml, code: must be a list of texts"),
        (["task.openings=null"], "task.openings: without them and without task.prompts"),
        (["task.prompts=gone.jsonl"], "task.prompts: gone.jsonl does not exist"),
        (["task.held_out_prompts=[1]"], "task.held_out_prompts: [1] must be a file or a list of files"),
        (["task.temperature=[]"], "task.temperature: [] must be a number or a list of them"),
        (["task.temperature=hot"], "task.temperature: 'hot' must be"),
        (["task.temperature=[0,3]"], "task.temperature: 3 must be between 0 (greedy) and 2"),
        (["task.prompts=3"], "task.prompts: 3 must be a file"),
        (["task.batch_tokens=64"], "task.batch_tokens: 64 must be 160 (task.width) or more"),
        (["task.warmup=16"], "task.warmup: 16 must be below task.steps=16"),
        (["task.work=draft/work"], "task.work: draft/work lies in task.output=draft"),
        (["task.answer_tokens=120"], "task.answer_tokens: with task.prompt_tokens and the longest opening"),
        (["task.only=train"], "task.data: draft-training/data has no answers to train on"),
        (["task.onyl=train"], "task.onyl: unknown option"),
        (["task.only=trian"], "did you mean 'train'?"),
        (["prompt=hello"], "prompt: task=train_draft has prompts of its own"),
        (["task.data=model"], "task.data: model is not empty and has no manifest.json"),
    ],
)
def test_refusals(cli: Callable[..., Any], place: Path, options: list[str], message: str) -> None:
    (place / "bad.yaml").write_text("code: Write\n")
    done = cli(*QUICK, *options)
    assert done.status == 2
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0] and "Traceback" not in done.err, done.err
    assert not (place / "draft").exists()
