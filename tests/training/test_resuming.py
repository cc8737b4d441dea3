"""Killed without warning, then started again: the same data, and the same weights to the bit."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from spec_sdk.training.sample_shards import read_shard, shard_files
from spec_sdk.training.samples import Sample
from tests.training.conftest import QUICK, started


def killed_when(place: Path, path: Path, *arguments: str) -> None:
    """Run a command and kill it as soon as ``path`` is there."""
    process = started(place, *arguments)
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"


def samples_of(directory: Path) -> dict[int, Sample]:
    samples = [sample for path in shard_files(directory) for sample in read_shard(path)]
    found = {sample.number: sample for sample in samples}
    assert len(found) == len(samples), "a sample was written twice"
    return found


def test_a_killed_run_ends_as_one_that_was_not(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*QUICK, "task.only=data", "task.data=data").status == 0
    train = (*QUICK, "task.only=train", "task.data=data")
    assert cli(*train, "task.output=whole").status == 0
    killed_when(place, place / "draft-training" / "state.safetensors", *train, "task.steps=16")
    done = cli(*train)
    assert done.status == 0 and "training goes on after step" in done.err
    whole, resumed = (load_file(place / name / "model.safetensors") for name in ("whole", "draft"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    states = [load_file(place / f"{name}-training" / "state.safetensors") for name in ("whole", "draft")]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items() if name != "torch_random")
    curves = [json.loads((place / name / "training.json").read_text())["curve"] for name in ("whole", "draft")]
    assert curves[0] == curves[1]


def test_data_of_other_texts_under_the_same_name_are_told_of(cli: Callable[..., Any], place: Path) -> None:
    data = (*QUICK, "task.only=data", "task.tokens=200", "task.openings=mine.yaml")
    (place / "mine.yaml").write_text("kind: [Name three, Count to]\n")
    assert cli(*data).status == 0
    (place / "mine.yaml").write_text("kind: [Name four]\n")
    other = cli(*data)
    assert other.status == 2 and "was begun with other texts in the files of prompts and openings; name" in other.err


def test_a_training_does_not_go_on_with_other_options(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*QUICK).status == 0
    other = cli(*QUICK, "task.learning_rate=0.001")
    assert other.status == 2 and "task.learning_rate: the training kept in" in other.err
    other = cli(*QUICK, "task.seed=1")
    assert other.status == 2 and "manifest.json has seed 0, and this run 1" in other.err
    # not the fingerprint that follows from it
    (place / "mine.yaml").write_text("kind: [Name three]\n")
    other = cli(*QUICK, "task.openings=mine.yaml")
    assert other.status == 2 and "has openings 'many_kinds', and this run 'mine.yaml'" in other.err
    state = place / "draft-training" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-9])
    damaged = cli(*QUICK)
    assert damaged.status == 2 and "is damaged" in damaged.err and "Traceback" not in damaged.err
    manifest = place / "draft-training" / "data" / "manifest.json"
    manifest.write_text(manifest.read_text()[:20])
    broken = cli(*QUICK)
    assert broken.status == 2 and "task.data: " in broken.err
    assert "is not valid JSON" in broken.err and "; remove data, or name another directory, to begin anew" in broken.err


def test_a_damaged_shard_is_removed_and_its_answers_are_made_again(cli: Callable[..., Any], place: Path) -> None:
    data = (*QUICK, "task.only=data", "task.tokens=800")
    assert cli(*data).status == 0
    shards = place / "draft-training" / "data"
    whole, names = samples_of(shards), [path.name for path in shard_files(shards)]
    first = shards / "shard-00000.safetensors"
    first.write_bytes(first.read_bytes()[:-9])
    damaged = cli(*data)
    assert damaged.status == 2 and "shard-00000.safetensors is damaged" in damaged.err
    assert "remove it, and run task.only=data again" in damaged.err
    first.unlink()
    kept = samples_of(shards)
    assert cli(*data).status == 0
    again = samples_of(shards)
    assert [path.name for path in shard_files(shards)][: len(names)] == names
    assert len(again) > len(kept) and all(again[number].answer == one.answer for number, one in kept.items())
    for number in (whole.keys() & again.keys()) - kept.keys():
        assert again[number].answer == whole[number].answer
    assert min(again) == min(whole)


def test_data_goes_on_after_the_last_shard(cli: Callable[..., Any], place: Path) -> None:
    data = (*QUICK, "task.only=data", "task.tokens=3000")
    assert cli(*data, "task.output=whole").status == 0
    killed_when(place, place / "draft-training" / "data" / "shard-00002.safetensors", *data)
    kept = samples_of(place / "draft-training" / "data")
    assert 0 < sum(len(sample.answer) for sample in kept.values()) < 3000
    assert cli(*data).status == 0
    whole, resumed = (samples_of(place / f"{name}-training" / "data") for name in ("whole", "draft"))
    assert kept.keys() <= resumed.keys()
    assert sum(len(sample.answer) for sample in resumed.values()) >= 3000
    both = whole.keys() & resumed.keys()
    assert len(both) > 0.7 * len(whole)
    for number in both:
        one, other = whole[number], resumed[number]
        assert (one.prompt, one.answer, one.kind, one.held_out) == (
            other.prompt,
            other.answer,
            other.kind,
            other.held_out,
        )
        assert torch.equal(one.top_id_AK[:, 0], other.top_id_AK[:, 0])
        torch.testing.assert_close(one.logprob_A, other.logprob_A, atol=1e-4, rtol=1e-4)
