"""``break_even`` prices nodes by measured times, and pauses where drafting does not pay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spec_sdk.contracts import Budget, CostCurve, SamplingParams
from spec_sdk.policy import AdaptiveConfig, AdaptivePolicy, BreakEvenConfig, BreakEvenPolicy
from spec_sdk.policy.prices import UNMEASURED, UNTRIED_SINCE
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.guessing import worthwhile
from tests.policies.machine import Machine, play, steady
from tests.policies.worlds import FLAT, STEEP, WORLDS, Known

REQUEST = request_for([1], reference_sampler(SamplingParams()), 0).view
PLAIN_S = 0.02


def cycle(budget: int, nodes: int, new: int, verify_s: float, draft_s: float = 0.0) -> dict[str, Any]:
    return {
        "event": "cycle",
        "prefix": 10,
        "budget": budget,
        "tree_nodes": nodes,
        "drafted": min(budget, nodes - 1),
        "accepted": new - 1,
        "tokens": [0] * new,
        "verify_s": verify_s,
        "recover_s": 0.0,
        "draft_s": draft_s,
    }


def prefill(
    tokens: int, drafter_s: float | None = None, seconds: float = 0.0, draft: str | None = "a draft model"
) -> dict[str, Any]:
    started = drafter_s or 0.0
    return {
        "event": "prefill",
        "tokens": tokens,
        "seconds": seconds + started,
        "drafter_s": drafter_s,
        "draft": draft,
    }


def asking(prompt: int, max_new_tokens: int = 96) -> Any:
    return request_for([1] * prompt, reference_sampler(SamplingParams()), 0, max_new_tokens=max_new_tokens).view


def warm(draft: str | None = None, **options: Any) -> BreakEvenPolicy:
    """After its first plain steps, of a drafter that has ``draft`` or none."""
    policy = BreakEvenPolicy(BreakEvenConfig(costs="learn", **options))
    policy.observe(prefill(0, draft=draft))
    for _ in range(3):
        assert policy.budget(REQUEST) == Budget(0)
        policy.observe(cycle(0, 1, 1, PLAIN_S))
    return policy


def test_it_begins_with_plain_steps_and_then_grants_everything_at_a_price() -> None:
    budget = warm(max=6, max_nodes=9).budget(REQUEST)
    assert (budget.depth, budget.nodes) == (6, 9)
    # nothing was measured: dear
    assert budget.node_costs[4] == pytest.approx(4 * UNMEASURED)
    assert budget.node_costs[0] == 0 and len(budget.node_costs) == 9
    assert list(budget.node_costs) == sorted(budget.node_costs)


@pytest.mark.parametrize("curve", [FLAT, STEEP])
def test_prices_are_those_of_the_cost_curve(curve: CostCurve) -> None:
    policy = BreakEvenPolicy(BreakEvenConfig())
    policy.prepare(Known(replace(WORLDS["flat curve, good"].machine, curve=curve)), True)
    for _ in range(16):
        policy.observe(cycle(0, 1, 1, PLAIN_S))
    costs = policy.budget(REQUEST).node_costs
    for nodes in (8, 16, 32):
        assert costs[nodes - 1] == pytest.approx(curve.at(nodes, 0) - 1, rel=0.05)


def test_prices_are_learned_from_the_passes_of_the_run() -> None:
    policy, times = warm(), {1: 1.0, 3: 1.6, 5: 2.2, 9: 3.4}
    for _ in range(20):
        for nodes, passes in times.items():
            # as many tokens as pay for it, so that a second is worth what it is in plain decoding
            policy.observe(cycle(4, nodes, 2, 2 * PLAIN_S if nodes == 1 else passes * PLAIN_S))
            policy.observe(cycle(0, 1, 1, PLAIN_S))
    learned = policy.budget(REQUEST).node_costs or policy.learned.prices.of_nodes
    assert learned[8] - learned[4] == pytest.approx(1.2, rel=0.35)


def test_where_drafts_make_tokens_fast_a_second_is_worth_more() -> None:
    policy, fast = warm(), warm()
    for _ in range(30):
        policy.observe(cycle(4, 4, 1, PLAIN_S))
        fast.observe(cycle(4, 4, 3, PLAIN_S * 1.5))
        policy.observe(cycle(4, 8, 2, PLAIN_S * 2))
        fast.observe(cycle(4, 8, 4, PLAIN_S * 2))
    assert fast.learned.prices.of_nodes[7] > 1.5 * policy.learned.prices.of_nodes[7]


def test_it_pauses_longer_each_time_drafting_loses_time() -> None:
    policy, pauses, paused = warm(retry=4, patience=1.0, refresh=10**6), list[int](), 0
    for _ in range(400):
        if policy.budget(REQUEST).depth:
            if paused:
                pauses.append(paused)
            paused = 0
            policy.observe(cycle(4, 5, 1, 1.4 * PLAIN_S))
        else:
            paused += 1
            policy.observe(cycle(0, 1, 1, PLAIN_S))
    assert pauses[:4] == [4, 8, 16, 32]


@pytest.mark.parametrize("draft", [None, "a draft model"])
def test_another_prompt_is_another_chance_for_what_is_looked_up(draft: str | None) -> None:
    policy = warm(draft, retry=4, patience=1.0, refresh=10**6)
    for _ in range(60):
        depth = policy.budget(REQUEST).depth
        policy.observe(cycle(4, 5, 1, 1.4 * PLAIN_S) if depth else cycle(0, 1, 1, PLAIN_S))
    policy.observe(prefill(1, drafter_s=0.0, draft=draft))
    for _ in range(4):
        policy.observe(cycle(0, 1, 1, PLAIN_S))
    assert (policy.budget(REQUEST).depth > 0) == (draft is None)


def test_a_slow_plain_step_is_no_loss_of_drafting() -> None:
    policy = warm(patience=1.0)
    for slow in (1, 4, 1, 4):
        policy.observe(cycle(12, 1, 1, slow * PLAIN_S))
        assert policy.budget(REQUEST).depth


def test_it_goes_on_where_drafting_pays() -> None:
    """Through strokes of bad luck, since what was gained before makes up for them; it may pause before any gain."""
    policy, choose, granted = warm(refresh=10**6), random.Random(0), list[bool]()
    for _ in range(400):
        granted.append(policy.budget(REQUEST).depth > 0)
        if granted[-1]:
            policy.observe(cycle(4, 5, choose.choice((1, 1, 4)), 1.3 * PLAIN_S))
        else:
            policy.observe(cycle(0, 1, 1, PLAIN_S))
    assert sum(granted[:100]) > 60 and all(granted[200:])


def test_a_plain_step_is_timed_anew_now_and_then() -> None:
    policy = warm(refresh=10)
    plain = []
    for step in range(44):
        granted = policy.budget(REQUEST).depth
        plain += [] if granted else [step]
        policy.observe(cycle(4, 5, 4, PLAIN_S) if granted else cycle(0, 1, 1, PLAIN_S))
    assert plain == [10, 21, 32, 43]


def test_what_a_cycle_without_a_draft_costs_is_drafting_alone() -> None:
    """Where nothing is worth its price the tree is the root: a plain step, and timed as one."""
    policy = warm(patience=1.0)
    before = policy.learned.times.plain.count
    for _ in range(5):
        policy.observe(cycle(4, 1, 1, PLAIN_S, draft_s=0.0005))
        assert policy.budget(REQUEST).depth
    assert policy.learned.times.plain.count == before + 5
    # 0.12 steps were lost
    for lost in (0.5, 0.3, 0.2):
        assert policy.budget(REQUEST).depth
        policy.observe(cycle(4, 5, 1, PLAIN_S, draft_s=lost * PLAIN_S))
    assert not policy.budget(REQUEST).depth


def test_what_a_level_and_a_second_are_worth_is_said() -> None:
    policy = warm("a draft model", refresh=10**6)
    for _ in range(60):
        # each level takes 0.15 plain steps behind 0.1, and every other one gives a token where it is reached
        policy.observe(cycle(2, 3, 2, PLAIN_S, draft_s=0.4 * PLAIN_S))
        policy.observe(cycle(4, 5, 3, PLAIN_S, draft_s=0.7 * PLAIN_S))
    budget = policy.budget(REQUEST)
    rate = 5 / 3.1 / PLAIN_S
    assert budget.tokens_per_second == pytest.approx(rate, rel=0.03)
    # of two levels the second was reached and gave nothing, of four the second was and did, and the third gave nothing
    assert budget.level_cost == pytest.approx((0.15 * PLAIN_S * rate + budget.node_costs[1]) / (1 / 3), rel=0.1)


def test_a_start_and_catching_up_are_no_losses_of_drafting() -> None:
    """Each takes six plain steps; what is drafted behind them gains."""
    run = warm(refresh=10**6)
    for late in (False, True, True):
        policy = run.for_request()
        policy.observe(prefill(300, drafter_s=None if late else 6 * PLAIN_S, seconds=12 * PLAIN_S))
        assert policy.budget(asking(301)).depth
        policy.observe(cycle(2, 3, 1, PLAIN_S, draft_s=(6.2 if late else 0.2) * PLAIN_S))
        assert policy.budget(asking(302)).depth
    assert run.learned.times.draft(2) == pytest.approx(0.2 * PLAIN_S)
    assert run.learned.times.catch_up(300) == pytest.approx(6 * PLAIN_S, rel=0.2)


@pytest.mark.parametrize("make", [warm, lambda: AdaptivePolicy(AdaptiveConfig())], ids=["break_even", "adaptive"])
def test_what_a_slot_had_of_a_prompt_makes_feeding_no_cheaper(make: Callable[[], Any]) -> None:
    """The next turn of a chat: 30 of its 1,000 tokens are fed, to the target and to the draft model."""
    prices = []
    for kept in (0, 970):
        run = make()
        for _ in range(20):
            event = prefill(30 + kept, drafter_s=0.6 * PLAIN_S, seconds=PLAIN_S)
            run.for_request().observe({**event, "kept": kept})
        prices.append(run.learned.times.catch_up(300))
    assert prices[0] == pytest.approx(prices[1]) and prices[0] > PLAIN_S


@pytest.mark.parametrize("drafts_in_another_drafter", [True, False])
def test_a_call_that_takes_far_longer_than_others_counts_for_one_plain_step(drafts_in_another_drafter: bool) -> None:
    policy = warm(refresh=10**6, patience=1.5)
    policy.learned.times.catches_up = not drafts_in_another_drafter
    policy.observe(prefill(300, drafter_s=0.0))
    for _ in range(3):
        policy.observe(cycle(2, 3, 1, PLAIN_S, draft_s=0.05 * PLAIN_S))
    policy.observe(cycle(2, 3, 1, PLAIN_S, draft_s=50 * PLAIN_S))
    assert policy.budget(REQUEST).depth
    policy.observe(cycle(2, 3, 1, PLAIN_S, draft_s=0.4 * PLAIN_S))
    assert not policy.budget(REQUEST).depth


def test_it_catches_up_where_the_rest_of_the_answer_is_worth_it() -> None:
    """A start takes 30 plain steps, and a cycle gains 0.8."""
    run = warm(refresh=10**6)
    for _ in range(3):
        policy = run.for_request()
        policy.observe(prefill(3000, drafter_s=30 * PLAIN_S))
        for _ in range(40):
            policy.observe(cycle(2, 3, 2, 1.1 * PLAIN_S, draft_s=0.1 * PLAIN_S))
    for remaining, asked in ((500, True), (40, False)):
        policy = run.for_request()
        policy.observe(prefill(3000))
        assert (policy.budget(asking(3001, remaining)).depth > 0) == asked
    # it is tried in the end, though what was gained says that it will not pay
    steps = 0
    while not policy.budget(asking(3001, 40)).depth and steps < 5000:
        policy.observe(cycle(0, 1, 1, PLAIN_S))
        steps += 1
    assert 1500 < steps < 4500


def test_where_a_draft_model_never_pays_a_run_loses_little() -> None:
    machine = Machine(draft_per_token=0.3, feed=0.03, verify_per_token=0.1, prefill=0.1)
    policy = BreakEvenPolicy(BreakEvenConfig(costs="learn"))
    played = play(machine, policy, [steady(0.05)] * 20, 200, prompt=300)
    assert 0.93 < played.ratio < 1


def test_where_a_draft_model_pays_it_is_asked_behind_every_prompt() -> None:
    """Though each start takes as long as nine plain steps."""
    machine = Machine(draft_per_token=0.1, feed=0.03, verify_per_token=0.02, prefill=0.1)
    policy = BreakEvenPolicy(BreakEvenConfig(max=2, costs="learn"))
    played = play(machine, policy, [steady(0.8)] * 20, 200, prompt=300)
    assert sum(budget > 0 for budget in played.budgets) > 0.95 * len(played.budgets)
    assert played.ratio > 1.6


def test_levels_that_do_not_pay_are_not_granted() -> None:
    """To a drafter that looks at no price, such as one that draws: a level takes 0.15 steps, and 0.6 are accepted."""
    policy, choose, depths = warm("a draft model", refresh=10**6, patience=10**6), random.Random(0), list[int]()
    for _ in range(600):
        depths.append(policy.budget(REQUEST).depth)
        right = 0
        while right < depths[-1] and choose.random() < 0.6:
            right += 1
        draft_s = (0.1 + 0.15 * depths[-1]) * PLAIN_S
        policy.observe(cycle(depths[-1], depths[-1] + 1, right + 1, PLAIN_S, draft_s))
    # 0.36 of the second level, 0.22 of the third
    assert max(depths) < 9 and 1.5 < sum(depths[100:]) / 500 < 3.5


def test_drafts_that_end_where_they_are_unsure_may_go_as_deep_as_they_like() -> None:
    policy, depths = warm("a draft model", refresh=10**6, patience=10**6), list[int]()
    for step in range(600):
        depths.append(policy.budget(REQUEST).depth)
        drafted, right = (depths[-1], depths[-1]) if step % 3 == 0 else (1, 0)
        policy.observe(cycle(depths[-1], 1 + drafted, 1 + right, PLAIN_S, (0.1 + 0.05 * drafted) * PLAIN_S))
    assert depths[0] < 3 and set(depths[100:]) == {12}


def test_what_is_unknown_becomes_cheaper_until_it_is_tried() -> None:
    """Sampled answers hardly ever have guesses as sure as the first price asks for."""
    policy = warm(refresh=10**6, patience=10**6)
    for _ in range(80):
        policy.observe(cycle(4, 1, 1, PLAIN_S))
    assert policy.budget(REQUEST).node_costs[1] < UNMEASURED / 8
    for _ in range(8):
        policy.observe(cycle(4, 3, 1, 1.5 * PLAIN_S))
    assert policy.budget(REQUEST).node_costs[2] == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize(("sure", "slow"), [(0.6, 3), (0.85, 10)])
def test_a_slow_first_pass_is_not_the_last(sure: float, slow: float) -> None:
    """Such as one that compiles something. Guesses that are right so often pay by far, a node taking 3 %."""
    policy, choose, wide, sizes = warm(), random.Random(0), 0, list[int]()
    # sooner than a size is forgotten
    for _ in range(400):
        budget = policy.budget(REQUEST)
        count = worthwhile([sure**i for i in range(1, budget.depth + 1)], budget.node_costs) if budget.depth else 0
        right = 0
        while right < count and choose.random() < sure:
            right += 1
        wide += count > 0
        seconds = PLAIN_S * (slow if wide == 1 and count else 1 + 0.03 * count)
        policy.observe(cycle(budget.depth, 1 + count, 1 + right, seconds))
        sizes.append(count)
    assert sum(size > 0 for size in sizes[-200:]) > 150


def test_where_nothing_pays_it_is_hardly_tried() -> None:
    """Guesses are right half as often as would pay for a node."""
    policy, tried, steps = warm(patience=10**6), 0, 2000
    for _ in range(steps):
        budget = policy.budget(REQUEST)
        count = worthwhile([0.15], budget.node_costs) if budget.depth else 0
        tried += count
        policy.observe(cycle(budget.depth, 1 + count, 1, PLAIN_S * (1 + 0.3 * count)))
    assert 0 < tried < steps / UNTRIED_SINCE


@pytest.mark.parametrize("longest", [None, 400])
def test_a_start_costs_what_the_draft_model_reads_of_a_prompt(longest: int | None) -> None:
    """Starts of 400 tokens take 4 plain steps, and a cycle gains 0.8: behind a prompt of 40,000 tokens it is worth its
    time where the draft model reads no more than those.
    """
    run = warm(refresh=10**6)
    run.learned.times.longest_catch_up = longest
    for _ in range(3):
        policy = run.for_request()
        policy.observe(prefill(400, drafter_s=4 * PLAIN_S))
        for _ in range(40):
            policy.observe(cycle(2, 3, 2, 1.1 * PLAIN_S, draft_s=0.1 * PLAIN_S))
    policy = run.for_request()
    policy.observe(prefill(40_000))
    assert (policy.budget(asking(40_001, 100)).depth > 0) == (longest is not None)
    if longest is not None:
        # such starts tell what those tokens take, not what all would, nor what those take that the slot did not have
        for kept in (0, 39_950):
            for _ in range(16):
                policy.observe({**prefill(40_000, drafter_s=4 * PLAIN_S), "kept": kept})
            assert run.learned.times.catch_up(400) == pytest.approx(4 * PLAIN_S)
