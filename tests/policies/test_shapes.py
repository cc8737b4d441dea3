"""``adaptive`` chooses depth and width: in invented worlds, by what passes cost and what is accepted."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter

import pytest

from spec_sdk.policy.acceptance import WIDTHS, Acceptance, UsualAcceptance
from spec_sdk.policy.shapes import FIRST_WIDEST, NOT_FILLED, PATIENCE, Shape, Widths, best_shape
from spec_sdk.policy.stage_times import StageTimes
from tests.policies.machine import Played
from tests.policies.worlds import FLAT, WORLDS, Known, World, adaptive_in, best_fixed, run

KNOWS = [pytest.param(True, id="cost curve"), pytest.param(False, id="learned")]


def after_some(name: str, knows_costs: bool, answers: int = 6, seed: int = 1) -> Played:
    """A run's later answers: two go before."""
    world = WORLDS[name]
    policy = adaptive_in(world.machine, knows_costs)
    run(world, policy, 2, 256, seed)
    return run(world, policy, answers, 256, seed + 100)


@pytest.mark.parametrize("knows_costs", KNOWS)
@pytest.mark.parametrize("name", [name for name in WORLDS if not name.endswith(("bad", "back and forth"))])
def test_it_is_nearly_as_fast_as_the_best_fixed_tree_in_hindsight(name: str, knows_costs: bool) -> None:
    """5 % in the mean of long simulations (benchmarks/adaptive_simulation.py); a single short one strays further."""
    _, best = best_fixed(name, answers=8)
    played = after_some(name, knows_costs, answers=8)
    assert played.seconds / played.tokens < 1.09 * best


@pytest.mark.parametrize("knows_costs", KNOWS)
def test_it_widens_where_width_is_cheap_and_siblings_tell_much(knows_costs: bool) -> None:
    played = after_some("flat curve, siblings tell much", knows_costs)
    assert statistics.median(width for width in played.widths if width) >= 3


@pytest.mark.parametrize("knows_costs", KNOWS)
def test_it_narrows_to_a_chain_where_width_is_dear(knows_costs: bool) -> None:
    played = after_some("steep curve, good", knows_costs)
    widths = Counter(width for width in played.widths if width)
    assert widths[1] > 0.9 * widths.total()


@pytest.mark.parametrize("knows_costs", KNOWS)
def test_it_narrows_to_a_chain_where_siblings_tell_nothing(knows_costs: bool) -> None:
    played = after_some("flat curve, good, siblings tell nothing", knows_costs)
    widths = Counter(width for width in played.widths if width)
    assert widths[1] > 0.7 * widths.total()


@pytest.mark.parametrize("knows_costs", KNOWS)
def test_a_bad_draft_on_a_steep_machine_ends_in_plain_decoding(knows_costs: bool) -> None:
    played = after_some("steep curve, bad", knows_costs)
    assert Counter(played.widths)[0] > 0.95 * len(played.widths)


@pytest.mark.parametrize("knows_costs", KNOWS)
@pytest.mark.parametrize("name", WORLDS)
def test_it_never_loses_five_per_cent_whatever_the_tree(name: str, knows_costs: bool) -> None:
    world = WORLDS[name]
    for seed in range(2):
        assert run(world, adaptive_in(world.machine, knows_costs), 4, 64, seed).ratio > 0.95


def test_a_wrong_cost_curve_costs_no_more_than_the_account_has() -> None:
    """It says that width is free, and every node costs half a plain step."""
    world = WORLDS["steep curve, bad"]
    policy = adaptive_in(dataclasses.replace(world.machine, curve=FLAT), knows_costs=True)
    assert run(world, policy, 8, 128, seed=0).ratio > 0.95


def test_a_known_curve_begins_sooner() -> None:
    world = WORLDS["flat curve, good"]
    known, learned = (run(world, adaptive_in(world.machine, knows), 1, 256, seed=3) for knows in (True, False))
    assert known.widths.count(0) < learned.widths.count(0) and known.seconds < learned.seconds


def test_no_wider_trees_are_asked_for_than_the_drafter_grows() -> None:
    world = WORLDS["flat curve, siblings tell much"]
    narrow = World(dataclasses.replace(world.machine, widest=2), world.rate, world.siblings)
    policy = adaptive_in(narrow.machine, knows_costs=True)
    run(narrow, policy, 4, 256, seed=0)
    assert policy.learned.widths.widest <= WIDTHS.index(3)


def test_a_drafter_of_chains_is_asked_for_chains() -> None:
    world = WORLDS["flat curve, good"]
    policy = adaptive_in(dataclasses.replace(world.machine, widest=1), knows_costs=True)
    played = run(world, policy, 2, 256, seed=0)
    # the machine would have grown wider trees
    assert set(played.widths) == {0, 1}


def test_widths_are_tried_step_by_step() -> None:
    widths, asked = Widths(), Shape(3, FIRST_WIDEST)
    assert widths.observe(asked, [4, 4, 4]) == FIRST_WIDEST and widths.widest == FIRST_WIDEST + 1
    for _ in range(NOT_FILLED):
        assert widths.widest == FIRST_WIDEST + 1
        assert widths.observe(Shape(3, FIRST_WIDEST + 1), [4, 4, 4]) == FIRST_WIDEST
    for again in range(PATIENCE):
        assert widths.widest == FIRST_WIDEST, again
        widths.observe(asked, [4, 4, 4])
    assert widths.widest == FIRST_WIDEST + 1


def test_one_wide_tree_tells_what_narrower_ones_would_have_done() -> None:
    usual = UsualAcceptance()
    acceptance = Acceptance(4, usual)
    for _ in range(200):
        # the second node at the first level, then the first child below it, then nothing
        acceptance.observe(WIDTHS.index(4), 3, [2, 2], cut=False)
    chain, two, three, four = acceptance.rates(3)
    assert chain[0] < 0.3 and min(two[0], three[0], four[0]) > 0.8
    assert min(two[1], four[1]) > 0.8 and max(two[2], four[2]) < 0.3
    assert usual.siblings(3)[1] > 0.8 > 0.3 > usual.siblings(3)[2]


def test_a_path_that_left_the_narrow_tree_does_not_come_back() -> None:
    acceptance = Acceptance(4, UsualAcceptance())
    for _ in range(50):
        acceptance.observe(WIDTHS.index(4), 3, [2, 1, 1], cut=False)
    chain, two = acceptance.rates(1)
    assert chain[0] < 0.5 and min(two[:3]) > 0.8


def test_what_was_learned_of_siblings_goes_for_wider_trees_too() -> None:
    """Misses fall with a power of the width, so what a tree of two tells holds for one of eight."""
    much, nothing = UsualAcceptance(), UsualAcceptance()
    for _ in range(300):
        much.observe_siblings(1, helped=True)
        nothing.observe_siblings(1, helped=False)
    eight = WIDTHS.index(8)
    assert min(much.siblings(eight)[2:]) > 0.5 and max(nothing.siblings(eight)[1:]) < 0.05


def test_a_cut_answer_rejects_nothing() -> None:
    one, other = Acceptance(3, UsualAcceptance()), Acceptance(3, UsualAcceptance())
    one.observe(1, 3, [1], cut=True)
    other.observe(1, 3, [1], cut=False)
    assert one.rates(1)[0][1] > other.rates(1)[0][1] and one.rates(1)[1][1] > other.rates(1)[1][1]


def test_the_best_shape_is_the_one_of_a_full_search() -> None:
    """Looking no further where it gets worse finds the same as looking everywhere."""
    for name in ("flat curve, middling", "steep curve, middling"):
        times = StageTimes()
        costs = Known(WORLDS[name].machine).kept()
        assert costs is not None
        times.use(costs)
        times.plain.add(1.0)
        expected = Acceptance(10, UsualAcceptance()).expected_tokens(8)
        shape, per_token = best_shape(times, expected, 10)
        every = {
            (depth, width): (times.draft(depth, WIDTHS[width]) + times.verify(1 + depth * WIDTHS[width]))
            / expected[width][depth - 1]
            for width in range(9)
            for depth in range(1, 11)
        }
        assert per_token == pytest.approx(min(every.values())) and every[shape] == pytest.approx(per_token)  # type: ignore[index]
        cheap = best_shape(times, expected, 10, most_s=1.5)[0]
        assert cheap is not None and times.draft(cheap.depth, cheap.per_level) + times.verify(cheap.nodes) <= 1.5
        assert best_shape(times, expected, 10, most_s=0.5) == (None, math.inf)
