"""What drafting and verifying cost, from times that are known."""

from __future__ import annotations

import pytest

from spec_sdk.advice.costs import DraftCosts, VerifyCosts, midmean, seconds_of
from spec_sdk.advice.cycles import Cycle
from spec_sdk.bench.cost_curve import CostCurve

CURVE = CostCurve({(100, 1): 0.010, (100, 9): 0.018, (100, 33): 0.042})


def cycle(nodes: int, verify_s: float, draft_s: float = 0.0, levels: int = 0, asked: int = 8) -> Cycle:
    sizes = (nodes - levels,) + (1,) * (levels - 1) if levels else ()
    return Cycle(100, asked, nodes, (), sizes, 1, draft_s, verify_s)


def test_verifying_is_the_curve_times_what_passes_took_of_it() -> None:
    costs = VerifyCosts(CURVE, [cycle(1, 0.010), cycle(9, 0.027)])
    assert costs.at(1, 100) == pytest.approx(0.010)
    assert costs.at(9, 100) == pytest.approx(0.027)
    # all trees take so much of the curve, however small
    assert costs.at(2, 100) == pytest.approx(0.011 * 1.5)
    assert costs.at(33, 100) == pytest.approx(0.042 * 1.5)
    # between two sizes the ratio lies on a line: 1.25 halfway
    two = VerifyCosts(CURVE, [cycle(1, 0.010), cycle(9, 0.027), cycle(33, 0.042)])
    assert two.at(21, 100) == pytest.approx(0.030 * 1.25)
    assert costs.pass_s(9, 100) == pytest.approx(0.018)


def test_an_interrupted_pass_does_not_count() -> None:
    passes = [cycle(1, 0.010)] * 7 + [cycle(1, 0.500)]
    assert VerifyCosts(CURVE, passes).at(1, 100) == pytest.approx(0.010)
    assert seconds_of(passes, CURVE) == pytest.approx(8 * 0.010)
    assert midmean([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert midmean([]) == 0.0


def test_verifying_needs_a_cycle() -> None:
    with pytest.raises(ValueError, match="one cycle"):
        VerifyCosts(CURVE, [])


def test_drafting_is_a_fixed_part_levels_and_nodes() -> None:
    def drafted(levels: int, nodes: int) -> Cycle:
        return cycle(nodes, 0.0, 0.001 + 0.002 * levels + 0.0005 * (nodes - 1 - levels), levels)

    costs = DraftCosts([drafted(8, 33), drafted(7, 8), drafted(2, 3), drafted(4, 5), cycle(1, 0.0, 0.0001)])
    assert costs.at(3, 10) == pytest.approx(0.001 + 0.006 + 0.003)
    assert costs.at(0, 1) == pytest.approx(0.0001)


def test_drafting_that_takes_the_same_whatever_it_drafts() -> None:
    costs = DraftCosts([cycle(9, 0.0, 0.002, 8), cycle(3, 0.0, 0.002, 2)])
    assert costs.fixed_s == pytest.approx(0.002)
    assert costs.level_s == costs.node_s == 0.0


def test_no_part_of_drafting_is_negative() -> None:
    costs = DraftCosts([cycle(9, 0.0, 0.001, 8), cycle(3, 0.0, 0.003, 2)])
    assert min(costs.fixed_s, costs.level_s, costs.node_s) == 0.0
    assert costs.at(8, 9) > 0


def test_plain_steps_tell_nothing_of_drafting() -> None:
    costs = DraftCosts([cycle(1, 0.01, 5.0, asked=0)])
    assert costs.at(0, 1) == costs.at(3, 4) == 0.0


def test_a_tree_that_was_drafted_often_takes_what_it_took() -> None:
    deep, short = [cycle(9, 0.0, 0.016, 8), cycle(5, 0.0, 0.008, 4)] * 20, [cycle(2, 0.0, 0.005, 1)]
    # a line through all: those of two milliseconds a level weigh more
    assert DraftCosts([*deep, *short * 3]).at(1, 2) < 0.004
    assert DraftCosts([*deep, *short * 4]).at(1, 2) == pytest.approx(0.005)
