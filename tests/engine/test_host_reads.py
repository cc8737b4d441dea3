"""How often a step waits for values of the device is counted, and is one where nothing is decided on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk.metrics import summarise
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

PROMPT = [5, 17, 44, 5, 17, 44, 5, 17]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "target"
    write_checkpoint(directory, "smollm", 3)
    return directory


def cycles(checkpoint: Path, *overrides: str) -> list[dict[str, Any]]:
    pipeline = build_pipeline(settings_of(f"model.target={checkpoint}", *overrides), Registry.discover())
    events: list[dict[str, Any]] = []
    tokens_of(pipeline, PROMPT, 9, ignore_eos=True, emit=events.append)
    found = [event for event in events if event["event"] == "cycle"]
    assert summarise(events)["host_reads_per_step"] == sum(event["host_reads"] for event in found) / len(found)
    return found


@pytest.mark.parametrize("name", ["vanilla", "prompt_lookup"])
def test_one_read_where_the_verdict_is_all_that_is_read(name: str, checkpoint: Path) -> None:
    assert {event["host_reads"] for event in cycles(checkpoint, f"pipeline={name}")} == {1}


def test_a_sampler_on_the_host_adds_some_for_every_row_that_it_looks_at(checkpoint: Path) -> None:
    found = cycles(checkpoint, "pipeline=prompt_lookup", "sampling.temperature=0.8")
    assert all(event["host_reads"] > event["accepted"] for event in found)


def test_a_drafter_that_grows_on_the_host_adds_one_per_level(checkpoint: Path) -> None:
    found = cycles(checkpoint, "pipeline=easyspec_tree", "policy.depth=3")
    assert all(event["host_reads"] == 1 + event["drafted"] for event in found)
    assert {event["drafted"] for event in found} >= {3}


def test_measuring_attention_adds_one_per_pass(checkpoint: Path) -> None:
    found = cycles(checkpoint, "pipeline=alspec", "predictor.size=2")
    assert {event["host_reads"] for event in found} == {2}
