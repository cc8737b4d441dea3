"""Schedules on any number of device groups, held against a simulation of every way in which predictions can hit."""

from __future__ import annotations

from itertools import product

import pytest

from spec_sdk.latency.model import StepTimes, speculative_us, tensor_parallel_us
from spec_sdk.latency.schedules import groups_needed, pipelined_us, scenario

FIXED = 7.0
TIMES = {
    "attention is faster": StepTimes(FIXED, 10.0, 5.0, 6.0, 1.0),
    "attention is a little slower": StepTimes(FIXED, 10.0, 14.0, 14.0, 2.0),
    "attention is far slower": StepTimes(FIXED, 3.0, 40.0, 41.0, 2.0),
    "the prediction is there at once": StepTimes(FIXED, 4.0, 30.0, 30.0, 0.0),
}


def simulated(times: StepTimes, hits: tuple[bool, ...], groups: int) -> float:
    """A token, event by event: whoever is free first goes on from a prediction."""
    free = [0.0] * groups
    at, holder, verified = 0.0, 0, 0.0
    for hit in hits:
        known = at + times.sender
        if hit:
            free[holder] = known
            verified = max(verified, known)
            other = min((g for g in range(groups) if g != holder), key=lambda g: free[g])
            at, holder = max(at + times.receiver, free[other]) + times.per_layer, other
        else:
            free = [known] * groups
            at = known + times.per_layer
    return times.fixed + max(at, verified)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("groups", [2, 3, 5])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_the_mean_is_that_of_all_outcomes(name: str, groups: int, rate: float) -> None:
    times, layers = TIMES[name], 7
    expected = sum(
        rate ** sum(hits) * (1 - rate) ** (layers - sum(hits)) * simulated(times, hits, groups)
        for hits in product((True, False), repeat=layers)
    )
    assert pipelined_us(times, layers, rate, groups) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_scenario_3_is_the_paper_s_formula(rate: float) -> None:
    times = TIMES["attention is faster"]
    assert scenario(times, 2) == 3 and groups_needed(times) == 2
    for groups in (2, 4):
        assert pipelined_us(times, 32, rate, groups) == pytest.approx(speculative_us(times, 32, rate))


@pytest.mark.parametrize("name", TIMES)
def test_nothing_is_slower_than_misses_alone_nor_faster_than_enough_groups(name: str) -> None:
    times, layers = TIMES[name], 32
    worst = times.fixed + layers * (times.sender + times.per_layer)
    assert pipelined_us(times, layers, 0.0, 2) == pytest.approx(worst)
    enough = groups_needed(times)
    best = pipelined_us(times, layers, 1.0, enough)
    assert pipelined_us(times, layers, 1.0, enough + 3) == pytest.approx(best)
    if enough > 2:
        assert pipelined_us(times, layers, 1.0, enough - 1) > best * (1 + 1e-9)
        assert (scenario(times, enough - 1), scenario(times, enough)) == (2, 1)
    # of all layers but the last, which waits for its verdict, a hit takes p + f
    between = times.receiver + times.per_layer
    assert best == pytest.approx(times.fixed + (layers - 1) * between + max(between, times.sender))


def test_in_the_long_run_busy_groups_share_the_work() -> None:
    times = TIMES["attention is far slower"]
    for groups in (2, 3):
        per_layer = pipelined_us(times, 4000, 1.0, groups) / 4000
        assert per_layer == pytest.approx((times.sender + times.per_layer) / groups, rel=1e-2)
    # two groups that meet at every attention take all of it
    assert speculative_us(times, 4000, 1.0) / 4000 == pytest.approx(times.sender, rel=1e-2)


def test_one_group_cannot_go_on_from_its_own_prediction() -> None:
    with pytest.raises(ValueError, match="1 group"):
        pipelined_us(TIMES["attention is faster"], 4, 0.5, 1)


def test_a_miss_costs_what_plain_decoding_costs_where_predicting_is_free() -> None:
    times = StepTimes(FIXED, 10.0, 14.0, 14.0, 0.0)
    assert pipelined_us(times, 9, 0.0, 3) == tensor_parallel_us(times, 9)
