"""What limits a pipeline: the numbers by hand, and the words."""

from __future__ import annotations

import pytest

from spec_sdk.advice.limits import limits_of
from spec_sdk.advice.predicting import Means

PLAIN_S = 0.010


def test_dear_passes() -> None:
    first, *_ = limits_of(Means(3.0, 4, 9, 0.001, 0.025, 0.0), PLAIN_S)
    assert first.kind == "verification"
    assert first.words == "verification cost: a pass over 9.0 nodes takes as long as 2.5 plain steps"
    # at a plain step's price: 30 ms of plain decoding in 11
    assert first.without == pytest.approx(30 / 11)


def test_a_dear_draft() -> None:
    first, *_ = limits_of(Means(3.0, 4, 5, 0.020, 0.011, 0.001), PLAIN_S)
    assert first.kind == "drafting"
    assert first.without == pytest.approx(30 / 12)
    assert first.words == "draft cost: drafting takes 20.0 ms a cycle, 2.00 plain steps"


def test_much_to_do_on_the_host() -> None:
    first, *_ = limits_of(Means(3.0, 4, 5, 0.001, 0.011, 0.009), PLAIN_S)
    assert first.kind == "host"
    assert first.without == pytest.approx(30 / 12)
    assert first.words == "host time and launch overhead: 9.0 ms a cycle beside the target's pass"


def test_drafts_that_are_seldom_accepted() -> None:
    first, *_ = limits_of(Means(1.1, 4, 5, 0.005, 0.020, 0.001), PLAIN_S)
    assert first.kind == "acceptance"
    assert first.without == pytest.approx(50 / 26)
    assert first.words == "low acceptance: 1.10 tokens a cycle of 5.0 possible ones"


def test_of_several_the_dearest_comes_first() -> None:
    kinds = [limit.kind for limit in limits_of(Means(3.0, 4, 9, 0.020, 0.015, 0.008), PLAIN_S)]
    assert kinds == ["drafting", "host", "verification", "acceptance"]


def test_where_everything_is_cheap_only_the_drafts_are_left() -> None:
    (only,) = limits_of(Means(3.0, 4, 5, 0.0002, 0.0105, 0.0003), PLAIN_S)
    assert only.kind == "acceptance" and only.words == "acceptance: 3.00 tokens a cycle of 5.0 possible ones"


def test_where_nothing_is_drafted_acceptance_is_not_low() -> None:
    (only,) = limits_of(Means(1.0, 0, 1, 0.0, 0.010, 0.0), PLAIN_S)
    assert only.kind == "undrafted" and only.words == "hardly anything was drafted"
