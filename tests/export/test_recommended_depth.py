"""How deep to draft: from acceptance by place, measured while training or just now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.export.recommended_depth import best_depth, mean_accepted_tokens, recommended
from spec_sdk.export.training_record import recorded_rates, training_record
from tests.export.exports import TAPPED, exported
from tests.support.tiny_heads import HeadSizes, write_eagle3


def test_tokens_per_pass_are_those_of_leviathan() -> None:
    """§3.1: with one rate α, (1 − α^(d+1)) / (1 − α)."""
    alpha = 0.7
    for depth, mat in enumerate(mean_accepted_tokens([alpha] * 6), start=1):
        assert mat == pytest.approx((1 - alpha ** (depth + 1)) / (1 - alpha))


def test_the_best_depth_is_the_fastest_of_all() -> None:
    for rates in ([0.9] * 8, [0.457, 0.359, 0.327, 0.297, 0.255], [0.0, 0.9], [1.0] * 16):
        mats = mean_accepted_tokens(rates)
        for cost in (0.001, 0.05, 0.3, 2.0):
            found = best_depth(rates, cost)
            assert all(
                mats[found - 1] / (1 + cost * found) >= mat / (1 + cost * depth) for depth, mat in enumerate(mats, 1)
            )
    assert best_depth([0.9] * 8, 2.0) == 1 and best_depth([0.9] * 8, 0.001) == 8
    # where one pass makes all drafts, more of them cost nothing
    assert best_depth([0.5] * 8, 2.0, at_once=True) == 8


def test_what_a_draft_can_do_at_most_bounds_it() -> None:
    def depth(rates: list[float], most: int | None) -> int:
        return recommended(rates, "", 0.01, at_once=False, most=most, otherwise=6).depth

    assert (depth([0.9] * 8, 3), depth([0.9] * 8, None), depth([], 4), depth([], None)) == (3, 8, 4, 6)


def test_what_training_measured_is_taken(target: Path, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", HeadSizes(), **TAPPED)
    assert exported(source, target, tmp_path / "unmeasured").depth == 3
    curve = [{"acceptance_rate_by_step": [0.0, 0.0]}, {"acceptance_rate_by_step": [0.99, 0.98, 0.0, None]}]
    (source / "training.json").write_text(json.dumps({"method": "eagle3", "curve": curve}))
    written = exported(source, target, tmp_path / "out")
    assert written.depth == 2
    card = (written.directory / "README.md").read_text()
    assert "| 1 | 0.990 | 1.990 |" in card and "Draft 2 tokens at a time" in card
    assert '"num_speculative_tokens": 2' not in card and "vllm serve DIRECTORY" in card
    assert training_record(written.directory)["curve"] == curve
    config = json.loads((written.directory / "config.json").read_text())
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 2
    # an option goes before what was measured, and what was measured now before what training measured
    assert exported(source, target, tmp_path / "asked", depth=5).depth == 5
    assert exported(source, target, tmp_path / "measured", rates=(0.9, 0.0, 0.0), prompts=2).depth == 1


def test_a_damaged_record_says_nothing() -> None:
    damaged: list[dict[str, Any]] = [{}, {"curve": []}, {"curve": [3]}]
    for record in (*damaged, {"curve": [{"acceptance_rate_by_step": [True, 2]}]}):
        assert recorded_rates(record) == ()
    assert recorded_rates({"curve": [{"acceptance_rate_by_step": [0.5, 1.5, 0.2]}]}) == (0.5,)
