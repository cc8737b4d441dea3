"""A ratio of speeds that tokens a pass cannot explain is told of: the clock was disturbed."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk.report import Column, doubts


def column(name: str, speed: float | None, accepted: float | None, attention: Any = None) -> Column:
    summary = {"tokens_per_second": speed, "mean_accepted_tokens": accepted, "attention": attention}
    return Column(name, summary, "exact")


VANILLA = column("vanilla", 20.0, 1.0)


def test_twice_as_fast_with_a_token_a_pass_is_told() -> None:
    [line] = doubts(column("suffix", 42.0, 1.01), VANILLA)
    assert line.startswith(
        "the ratio 2.10× is more than the tokens of a pass explain (1.01×): something slowed vanilla"
    )


@pytest.mark.parametrize(
    ("speed", "accepted"), [(20.0, 1.0), (21.9, 1.0), (40.0, 2.5), (54.0, 2.5), (None, 1.0), (40.0, None)]
)
def test_what_tokens_a_pass_explain_is_not(speed: float | None, accepted: float | None) -> None:
    assert doubts(column("suffix", speed, accepted), VANILLA) == []


def test_nothing_is_said_without_a_baseline_or_of_speculation_on_attention() -> None:
    assert doubts(column("suffix", 99.0, 1.0)) == []
    assert doubts(column("alspec", 99.0, 1.0, {"hit_rate": 0.5}), VANILLA) == []
