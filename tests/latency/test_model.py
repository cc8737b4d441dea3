"""ALSpec's latency model: its formulas, the paper's Table 3, and what Tables 4 to 7 add up to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.latency.estimate import Estimate, Question, default_devices, estimate
from spec_sdk.latency.model import Rounding, StepTimes, break_even, speculative_us, tensor_parallel_us, whole_hits
from spec_sdk.latency.table import load_table, parse_table, shipped

K = 1024
TABLE_3 = {
    1 * K: (244.6, 249.3, 1.9, 262.0, 7.1),
    32 * K: (214.2, 231.3, 8.0, 246.0, 14.8),
    64 * K: (191.4, 209.7, 9.6, 237.8, 24.2),
    96 * K: (178.2, 194.2, 9.0, 224.9, 26.2),
    128 * K: (169.3, 184.8, 9.2, 217.5, 28.5),
}
"""Context → TP 4, TP 8, TP scaling (%), ALSpec, ALSpec scaling (%), as printed."""
PRINTED_TOTALS = {1: (846747, 2313703), 2: (555015, 1207636), 4: (387584, 638529), 8: (440451, 384460)}
"""Tables 4-7: chips → a layer without flash decode, embedding and head; ns."""

time = st.floats(1.0, 1e5)
steps = st.builds(StepTimes, time, time, time, time, time)
layer_counts = st.integers(1, 100)
rates = st.floats(0, 1)


def h100(rounding: Rounding) -> list[Estimate]:
    return estimate(load_table("h100"), Question([0.65], rounding=rounding))


def test_table_3_unrounded() -> None:
    rows = h100("none")
    assert [(row.devices, row.context) for row in rows] == [(8, context) for context in TABLE_3]
    for row in rows:
        tp4, tp8, tp_scaling, alspec, alspec_scaling = TABLE_3[row.context]
        assert row.group_speed == pytest.approx(tp4) and row.all_speed == pytest.approx(tp8)
        assert abs(row.alspec[0.65] - alspec) <= 0.2
        assert f"{100 * (tp8 / tp4 - 1):.1f}" == f"{tp_scaling}"
        assert f"{100 * (row.alspec[0.65] / tp4 - 1):.1f}" == f"{alspec_scaling}"


def test_table_3_rounded() -> None:
    for row in h100("paper"):
        alspec = TABLE_3[row.context][3]
        assert 0 < (alspec - row.alspec[0.65]) / alspec <= 0.012


@pytest.mark.parametrize("chips", PRINTED_TOTALS)
def test_n150_sums_are_the_printed_totals(chips: int) -> None:
    table = load_table("n150")
    step = table.groups[chips].step(K, table.layers)
    layer, fixed = PRINTED_TOTALS[chips]
    assert step.per_layer == pytest.approx(layer / 1e3)
    # the ops of Table 5's embedding and head add up to 42 ns more than it prints
    assert step.fixed == pytest.approx((fixed + (42 if chips == 2 else 0)) / 1e3)


def test_n150_gains_nothing_from_8_chips_over_4() -> None:
    """§5.2 says so for long contexts of Figure 7; of Tables 4-7, it is true at 1K."""
    [row] = estimate(load_table("n150"), Question([0.5], devices=[8]))
    assert row.group_speed is not None and row.all_speed is not None
    assert row.all_speed < row.group_speed < row.alspec[0.5]
    assert row.break_even_all == -math.inf


def test_the_formula_by_hand() -> None:
    times = StepTimes(fixed=100, per_layer=10, flash_decode=20, sender=22, receiver=4)
    assert tensor_parallel_us(times, 32) == 100 + 32 * 30
    assert speculative_us(times, 32, 0.65, "paper") == 100 + 20 * (4 + 18) + 12 * 32
    assert speculative_us(times, 32, 0.65) == pytest.approx(100 + 20.8 * 22 + 11.2 * 32)
    assert break_even(times, 32, tensor_parallel_us(times, 32)) == pytest.approx(0.2)
    assert break_even(times, 32, tensor_parallel_us(times, 32), "paper") == 7 / 32
    assert break_even(times, 32, 100 + 32 * 32 + 1) == -math.inf
    assert break_even(times, 32, 100 + 32 * 22) == math.inf


@pytest.mark.parametrize("layers", [1, 30, 32, 80])
def test_whole_numbers_of_layers_are_not_rounded_away(layers: int) -> None:
    assert [whole_hits(layers, hits / layers) for hits in range(layers + 1)] == list(range(layers + 1))


@settings(deadline=None)
@given(steps, layer_counts)
def test_no_hits_and_all_hits(times: StepTimes, layers: int) -> None:
    for rounding in ("none", "paper"):
        none = speculative_us(times, layers, 0.0, rounding)
        every = speculative_us(times, layers, 1.0, rounding)
        assert none == pytest.approx(times.fixed + layers * (times.per_layer + times.sender))
        hidden = max(times.sender, times.receiver + times.per_layer)
        assert every == pytest.approx(times.fixed + layers * hidden)


@settings(deadline=None)
@given(steps, layer_counts, rates, rates)
def test_more_hits_are_never_slower_if_the_prediction_comes_first(
    times: StepTimes, layers: int, rate: float, other: float
) -> None:
    early = StepTimes(times.fixed, times.per_layer, times.flash_decode, times.receiver + times.sender, times.receiver)
    low, high = sorted((rate, other))
    for rounding in ("none", "paper"):
        slower, faster = (speculative_us(early, layers, r, rounding) for r in (low, high))
        assert faster <= slower * (1 + 1e-9)
    # rounding down hits only costs time: the paper calls it an upper bound
    bound = speculative_us(early, layers, rate, "paper")
    assert bound >= speculative_us(early, layers, rate) * (1 - 1e-6)


@settings(max_examples=300, deadline=None)
@given(steps, layer_counts, st.floats(1.0, 1e7))
def test_break_even_is_where_the_two_cross(times: StepTimes, layers: int, other: float) -> None:
    rate = break_even(times, layers, other)
    ends = [speculative_us(times, layers, r) for r in (0.0, 1.0)]
    if rate == -math.inf:
        assert max(ends) < other
    elif rate == math.inf:
        assert ends[1] >= other * (1 - 1e-6)
    else:
        assert 0 <= rate < 1
        assert speculative_us(times, layers, rate) == pytest.approx(other)
        assert ends[1] < other
        whole = break_even(times, layers, other, "paper")
        assert rate <= whole <= 1 and whole - rate <= 1 / layers + 1e-6


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_table_answers_everything_it_offers(name: str) -> None:
    table = load_table(name)
    rows = estimate(table, Question([0.0, 1.0]))
    assert {row.devices for row in rows} == set(default_devices(table))
    assert all(row.group_speed and row.alspec[1.0] >= row.alspec[0.0] for row in rows)


def test_contexts_between_those_measured_are_interpolated() -> None:
    content: dict[str, Any] = {"layers": 2, "unit": "ms"}
    content["tensor_parallel"] = {1: {"fixed": 1, "per_layer": 1, "flash_decode": {"1K": 1, "3K": 3}}}
    table = parse_table(yaml.safe_dump(content), "mine", "mine.yaml")
    [row] = estimate(table, Question([0.5], contexts=[2 * K]))
    assert row.step is not None and row.step.flash_decode == 2000
    assert row.group_speed == pytest.approx(1000 / 7)
    assert row.all_speed is None and row.break_even_all is None
