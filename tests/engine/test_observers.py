"""What only the error bounds need is measured where they are asked for, and changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk.metrics import summarise
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from tests.support.real_pipelines import settings_of, tokens_of
from tests.support.tiny_checkpoints import write_checkpoint

PROMPT = [5, 17, 44, 8, 23, 61, 9, 30, 12]


@pytest.mark.parametrize("name", ["alspec", "alspec_easyspec_tree"])
def test_error_bounds_are_an_observer_that_a_run_asks_for(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "smollm", 3)
    common = [f"pipeline={name}", f"model.target={tmp_path}", "predictor.size=2", "attention_verifier.threshold=0.5"]
    answers, attention = [], []
    for asked in ("false", "true"):
        pipeline = build_pipeline(settings_of(*common, f"error_bounds={asked}"), Registry.discover())
        events: list[dict[str, Any]] = []
        answers.append(tokens_of(pipeline, PROMPT, 8, ignore_eos=True, emit=events.append))
        attention.append([event["attention"] for event in events if event["event"] == "cycle"])
        bounds = summarise(events)["attention"]["error_bounds"]
        assert (bounds is None) == (asked == "false")
    without, observed = attention
    assert answers[0] == answers[1]
    assert all(report["state_norm"] is None and report["constants"] is None for report in without)
    assert [report["constants"] is None for report in observed] == [False] + [True] * (len(observed) - 1)
    for plain, measured in zip(without, observed, strict=True):
        layers = len(plain["hit"])
        assert len(measured["state_norm"]) == layers + 1 and min(measured["state_norm"]) > 0
        assert {key: plain[key] for key in ("hit", "error", "difference")} == {
            key: measured[key] for key in ("hit", "error", "difference")
        }
