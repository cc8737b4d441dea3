"""A cost curve between and beyond its points, and what is no curve."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_sdk.bench.cost_curve import CostCurve

CURVE = CostCurve({(64, 1): 2.0, (64, 8): 3.4, (64, 16): 9.8, (1024, 1): 4.0, (1024, 8): 5.4, (1024, 16): 11.8})


def test_points_are_kept_and_lines_drawn_between_them() -> None:
    assert CURVE.at(1, 64) == 2.0 and CURVE.at(8, 64) == 3.4 and CURVE.at(16, 1024) == 11.8
    assert CURVE.at(4.5, 64) == pytest.approx(2.7) and CURVE.at(12, 64) == pytest.approx(6.6)
    assert CURVE.at(8, 544) == pytest.approx(4.4)


def test_beyond_the_points_lines_go_on() -> None:
    assert CURVE.at(24, 64) == pytest.approx(16.2)
    assert CURVE.at(1, 1984) == pytest.approx(6.0)
    # nothing is known of shorter contexts
    assert CURVE.at(8, 0) == 3.4


def test_a_pass_costs_no_more_than_a_wider_one_or_one_behind_more() -> None:
    noisy = CostCurve({(64, 1): 3.0, (64, 2): 2.0, (64, 4): 5.0, (256, 1): 2.5, (256, 4): 4.0})
    assert [noisy.at(nodes, 64) for nodes in (1, 2, 4)] == [2.0, 2.0, 4.0]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from([64, 256, 1024]), st.sampled_from([1, 2, 4, 8, 16, 64])),
        st.floats(1e-4, 10),
        min_size=1,
    ),
    st.floats(1, 100),
    st.floats(1, 100),
    st.integers(0, 4000),
    st.integers(0, 4000),
)
def test_it_never_falls(points: dict[tuple[int, int], float], one: float, other: float, short: int, long: int) -> None:
    try:
        curve = CostCurve(points)
    except ValueError:
        return
    nodes, contexts = sorted((one, other)), sorted((short, long))
    assert curve.at(nodes[0], short) <= curve.at(nodes[1], short) * (1 + 1e-9)
    if {context for context, _ in points} <= {64}:
        assert curve.at(one, contexts[0]) == curve.at(one, contexts[1])
    assert curve.at(one, contexts[0]) <= curve.at(one, contexts[1]) * (1 + 1e-9)


def test_json_keeps_it() -> None:
    again = CostCurve.from_json(json.loads(json.dumps(CURVE.as_json())))
    assert again == CURVE and again.at(5, 300) == CURVE.at(5, 300)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        [[64, 1, 0.1]],
        [[64, 1, 0.1], [64, 2]],
        [[64, 1, 0.1], [64, 2, "x"]],
        [[64, 1, 0.1], [64, 2, -1.0]],
        [[64, 1, float("nan")], [64, 2, 1.0]],
        [[64, 0, 0.1], [64, 2, 1.0]],
        [[64, 1, 0.1], [64, 2, 0.1], [256, 1, 0.1]],
    ],
)
def test_what_is_no_curve_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        CostCurve.from_json(value)
