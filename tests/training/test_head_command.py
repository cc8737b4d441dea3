"""``task.method=eagle3`` from nothing to a head that a pipeline drafts with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spec_sdk import Engine
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.target_identity import target_identity
from tests.training.conftest import HEAD
from tests.training.test_resuming import killed_when


def test_a_head_learns_and_counts_what_a_run_counts(cli: Callable[..., Any], place: Path) -> None:
    # sampled answers: greedy ones of a random model soon repeat themselves
    longer = ("task.tokens=3500", "task.batch=32", "task.steps=60", "task.evaluate_every=30", "task.temperature=1")
    done = cli(*HEAD, *longer, "task.learning_rate=0.01", "task.labels=64", "task.stored=float32")
    assert done.status == 0, done.err
    assert done.out == "drafter.checkpoint=draft\n"
    kept = json.loads((place / "draft" / "training.json").read_text())
    assert (kept["method"], kept["target_identity"]) == ("eagle3", target_identity(open_checkpoint("model")))
    curve = kept["curve"]
    untrained, trained = curve[0], curve[-1]
    assert [point["step"] for point in curve] == [0, 30, 60]
    assert trained["loss"] < untrained["loss"]
    assert trained["mean_accepted_tokens_sampled"] > untrained["mean_accepted_tokens_sampled"]
    assert len(trained["acceptance_rate_by_step"]) == 5
    config = json.loads((place / "draft" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] == 300
    assert config["speculators_config"]["verifier"]["name_or_path"] == "model"
    tensors = load_file(place / "draft" / "model.safetensors")
    assert tensors["lm_head.weight"].shape[0] == 300 and "embed_tokens.weight" not in tensors
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], tensors["d2t"] + torch.arange(300))
    card = (place / "draft" / "README.md").read_text()
    assert "untrained head" in card and "drafter.checkpoint=DIRECTORY" in card and "of each token of a chain" in card
    # the same greedy answers as the target alone
    overrides = ["backend.native=false", f"drafter.checkpoint={place / 'draft'}"]
    engine = Engine.from_pipeline("eagle_tree", target=place / "model", overrides=overrides)
    prompts = ["What is this?", "Write a story.", "Why"]
    found, plain = (
        e.generate(prompts, max_new_tokens=24, ignore_eos=True) for e in (engine, engine.with_pipeline("vanilla"))
    )
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain]


def test_output_rows_are_left_to_the_target(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*HEAD, "task.steps=2", "task.warmup=0").status == 0
    small_one = ("task.output=small", "task.whole=false", "task.work=draft-training")
    assert cli(*HEAD, "task.steps=2", "task.warmup=0", *small_one).status == 0
    whole, small = (load_file(place / name / "model.safetensors") for name in ("draft", "small"))
    assert whole.keys() - small.keys() == {"lm_head.weight"}
    asked = (
        "pipeline=eagle_tree",
        "policy=fixed",
        "model.target=model",
        "backend.native=false",
        "prompt=What is",
        "max_new_tokens=20",
    )
    runs = []
    for name in ("draft", "small"):
        assert cli(*asked, f"drafter.checkpoint={name}", "ignore_eos=true", f"output_dir=of-{name}").status == 0
        runs.append(json.loads((place / f"of-{name}" / "metrics.json").read_text())["prompts"][0])
    assert runs[0]["text"] == runs[1]["text"] and runs[0]["steps"] == runs[1]["steps"]


def test_a_killed_run_ends_as_one_that_was_not(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*HEAD, "task.only=data", "task.data=data").status == 0
    train = (*HEAD, "task.data=data", "task.steps=12")
    assert cli(*train, "task.output=whole", "task.features=whole-features").status == 0
    killed_when(place, place / "data-features" / "features-00001.safetensors", *train)
    assert not (place / "draft-training" / "state.safetensors").exists()
    killed_when(place, place / "draft-training" / "state.safetensors", *train)
    done = cli(*train)
    assert done.status == 0 and "training goes on after step" in done.err and "features:" not in done.err
    for one in (place / "whole-features").glob("*.safetensors"):
        assert torch.equal(*(load_file(p)["feature_TF"] for p in (one, place / "data-features" / one.name)))
    whole, resumed = (load_file(place / name / "model.safetensors") for name in ("whole", "draft"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_features_are_bounded_and_checked(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*HEAD, "task.only=data").status == 0
    data, features = (place / "draft-training" / name for name in ("data", "data-features"))
    none = cli(*HEAD, "task.only=features", "task.features_gb=0.00001")
    assert none.status == 2 and "task.features_gb: 1e-05 is less than the states of one file" in none.err
    some = cli(*HEAD, "task.only=features", "task.features_gb=0.0003")
    assert some.status == 0 and "of answers fit into task.features_gb=0.0003" in some.err
    there = sorted(features.glob("features-*"))
    assert 0 < len(there) < len(list(data.glob("shard-*")))
    assert sum(path.stat().st_size for path in there) < 310_000
    missing = cli(*HEAD, "task.only=train")
    assert missing.status == 2 and "is not there; run task.only=features before" in missing.err
    assert cli(*HEAD, "task.only=train", "task.features_gb=0.0003", "task.steps=2", "task.warmup=0").status == 0
    other = cli(*HEAD, "task.taps=[0,1,2]")
    assert other.status == 2 and "other data or other task.taps" in other.err
    there[0].write_bytes(there[0].read_bytes()[:-7])
    damaged = cli(*HEAD, "task.only=train", "task.features_gb=0.0003")
    assert damaged.status == 2 and "features-00000.safetensors is damaged" in damaged.err
    there[0].write_bytes(there[1].read_bytes())
    swapped = cli(*HEAD, "task.only=train", "task.features_gb=0.0003")
    assert swapped.status == 2 and "has states of other samples than shard-00000.safetensors" in swapped.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.taps=[1,2,9]"], "task.taps: [1, 2, 9] must be different layers of model"),
        (["task.taps=[1,1,2]"], "task.taps: [1, 1, 2] must be different layers"),
        (["task.stored=int8"], "task.stored: heads are stored as bfloat16 or float32, not as int8"),
        (["task.layers=2"], "task.layers: is an option of task.method=model"),
        (["task.method=model", "task.taps=null"], "task.unrolled: is an option of task.method=eagle3"),
        (["task.method=eagle"], "did you mean 'eagle3'?"),
        (["task.features=draft/here"], "task.features: draft/here lies in task.output=draft"),
        (["task.features=model"], "task.features: model is not empty and has no manifest.json"),
        (["task.kv_heads=3"], "task.kv_heads: 3 is more than the target's 2"),
    ],
)
def test_refusals(cli: Callable[..., Any], place: Path, options: list[str], message: str) -> None:
    done = cli(*HEAD, *options)
    assert done.status == 2
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0] and "Traceback" not in done.err, done.err
    assert not (place / "draft").exists()
