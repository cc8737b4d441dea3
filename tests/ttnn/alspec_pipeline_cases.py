"""``pipeline=alspec backend=ttnn`` beside ``backend=cpu``. Run by ``test_attention_speculation.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk_backends.ttnn.executor import TtnnExecutor
from spec_sdk_backends.ttnn.mesh_executor import MeshExecutor
from tests.conftest import FULL
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

PROMPTS = ([7 + 11 * i % 83 for i in range(37)], [5, 9, 17, 30])
NEW_TOKENS = 4
RUNS: dict[str, tuple[str, ...]] = {
    "alspec": ("pipeline=alspec", "predictor.size=3", "attention_verifier.threshold=0.7"),
    "alspec, residual": (
        "pipeline=alspec",
        "predictor.first=1",
        "predictor.last=6",
        "attention_verifier.space=residual",
        "attention_verifier.never=[0]",
        "attention_verifier.threshold=0.45",
    ),
    "all three levels": ("pipeline=alspec_easyspec_tree", "predictor.size=3", "attention_verifier.threshold=0.5"),
}
DEVICES = {"alspec": (1, 2) if FULL else (2,), "alspec, residual": (2,), "all three levels": (1, 2) if FULL else (1,)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tiny") / "target"
    write_checkpoint(place, "smollm", num_hidden_layers=3)
    return place


def answers(checkpoint: Path, *overrides: str) -> tuple[list[list[int]], list[list[dict[str, Any]]], Any]:
    """Tokens and cycles of both prompts, answered together, and the executor."""
    running = build_pipeline(settings_of(f"model.target={checkpoint}", *overrides), Registry.discover())
    engine = running.new_engine(len(PROMPTS))
    cycles: list[list[dict[str, Any]]] = [[] for _ in PROMPTS]
    ids = [
        engine.add(TokenRequest(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True, emit=events.append))
        for prompt, events in zip(PROMPTS, cycles, strict=True)
    ]
    tokens: dict[int, list[int]] = {request: [] for request in ids}
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None, progress.error
            tokens[progress.request] += progress.tokens
    events = [[event for event in own if event["event"] == "cycle"] for own in cycles]
    return [tokens[request] for request in ids], events, running.models.target.executor


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name == "alspec, residual")) for name in RUNS]
)
def test_tokens_hits_and_errors_are_those_of_the_cpu(name: str, checkpoint: Path) -> None:
    expected, expected_cycles, _ = answers(checkpoint, "backend=cpu", *RUNS[name])
    for devices in DEVICES[name]:
        found, cycles, executor = answers(checkpoint, "backend=ttnn", f"backend.devices={devices}", *RUNS[name])
        assert type(executor) is (MeshExecutor if devices == 2 else TtnnExecutor)
        assert found == expected, f"{devices} devices"
        for ours, theirs in zip(cycles, expected_cycles, strict=True):
            assert [cycle["accepted"] for cycle in ours] == [cycle["accepted"] for cycle in theirs]
            for one, other in zip(ours, theirs, strict=True):
                assert one["attention"]["hit"] == other["attention"]["hit"]
                errors = [[e for e in cycle["attention"]["error"] if e is not None] for cycle in (one, other)]
                assert errors[0] == pytest.approx(errors[1], rel=1e-3, abs=1e-5)
    hits = [hit for own in expected_cycles for cycle in own for hit in cycle["attention"]["hit"]]
    assert {True, False} <= set(hits), "both outcomes are met"


def test_three_devices_are_refused(checkpoint: Path) -> None:
    with pytest.raises(UserError, match="backend.devices"):
        answers(checkpoint, "backend=ttnn", "backend.devices=3", *RUNS["alspec"])
