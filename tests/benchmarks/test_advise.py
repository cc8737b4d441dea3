"""What the benchmark of ``task=advise`` makes of its settings, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.advise import DEFAULT, SETTINGS, Setting, report, result_of


def found(**speedups: tuple[float, float]) -> dict[str, Any]:
    """An advise.json: candidate → predicted and measured."""
    return {
        "candidates": [{"candidate": name, "tree": "1 × 1", "limits": [{"kind": "drafting"}]} for name in speedups],
        "verification": [
            {"name": name, "predicted": predicted, "speedup": speedup, "prompts": 2, "error": predicted / speedup - 1}
            for name, (predicted, speedup) in speedups.items()
        ],
        "new_tokens": 64,
        "plain": {"tokens_per_second": 100.0},
    }


def test_settings_come_together(tmp_path: Path) -> None:
    settings = {
        # the one predicted to be best is 10 % behind the best measured, which is the second
        "mt_bench": found(suffix=(2.0, 1.8), mixed=(1.9, 2.0), prompt_lookup=(1.0, 1.25)),
        # plain decoding is predicted to be best, and is
        "translation": found(suffix=(0.9, 0.75), mixed=(0.8, 0.8), prompt_lookup=(0.5, 0.5)),
    }
    for task, result in settings.items():
        path = result_of(tmp_path, Setting(DEFAULT, task))
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(result))
    made = report(tmp_path)
    assert made["summary"] == {
        "settings": 2,
        "pairs": 6,
        "median_error": pytest.approx((0.05 + 0.2 / 1.8) / 2),
        "worst_error": pytest.approx(0.2),
        # those of 1.8, 2.0 and 1.25
        "pairs_of_large_gain": 3,
        "median_error_of_large_gain": pytest.approx(0.2 / 1.8),
        "worst_error_of_large_gain": pytest.approx(0.2),
        "median_error_of_predicted_best": pytest.approx((0.2 / 1.8 + 0.2) / 2),
        "predicted_best_within_5_percent": 0.5,
        "advised_of_two_within_5_percent": 1.0,
    }
    assert [setting["predicted_best"] for setting in made["results"]] == ["suffix", "vanilla"]


def test_settings_keep_their_results_apart() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert Setting(DEFAULT, "qa", "dense").name == "SmolLM2-135M-Instruct-dense-qa"
