"""``adaptive`` on invented machines: it finds the best depth, falls back, comes back, and never loses much."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.policy import AdaptiveConfig, AdaptivePolicy
from tests.policies.machine import Machine, Played, Rate, alternating, play, steady, switching
from tests.policies.worlds import Known
from tests.support.configured import plugin_of

SMALL_DRAFT = Machine(draft_per_token=0.1, verify_per_token=0.02, feed=0.002, prefill=0.01, noise=0.1)
MIDDLING_DRAFT = Machine(draft_per_token=0.3, verify_per_token=0.05, feed=0.01, prefill=0.03, noise=0.1)
LARGE_DRAFT = Machine(draft_per_token=0.75, verify_per_token=0.15, feed=0.06, prefill=0.066, noise=0.1)
"""About SmolLM2 and its cut on two CPU cores: drafting can hardly pay, and starting the draft model costs 4 steps."""
FIXED_COST = Machine(draft=0.8, draft_per_token=0.03, verify_per_token=0.02, feed=0.002, prefill=0.01, noise=0.1)
LOOKUP = Machine(draft_per_token=0.0, verify_per_token=0.15, silent=0.5, noise=0.1)
MACHINES = {
    "small draft": SMALL_DRAFT,
    "middling draft": MIDDLING_DRAFT,
    "large draft": LARGE_DRAFT,
    "fixed cost": FIXED_COST,
    "lookup": LOOKUP,
}


def adaptive() -> AdaptivePolicy:
    return AdaptivePolicy(AdaptiveConfig())


def share_speculated(budgets: list[int]) -> float:
    """The share of cycles that asked for a draft."""
    return sum(budget > 0 for budget in budgets) / len(budgets)


@pytest.mark.parametrize(
    ("machine", "rate"),
    [(SMALL_DRAFT, 0.5), (SMALL_DRAFT, 0.8), (MIDDLING_DRAFT, 0.8), (MIDDLING_DRAFT, 0.95), (FIXED_COST, 0.8)],
)
def test_it_comes_near_the_best_depth(machine: Machine, rate: float) -> None:
    """After 400 tokens; its plain steps included, against a clairvoyant that drafts to the best depth all along."""

    def speed(depth: int) -> float:
        return machine.plain * sum(rate**i for i in range(depth + 1)) / machine.cycle(depth)

    depth, policy = machine.best_depth(rate, 10), adaptive()
    play(machine, policy, [steady(rate)], 400)
    played = play(machine, policy, [steady(rate)], 1000)
    assert depth > 0 and played.ratio > 0.85 * speed(depth)
    assert speed(round(statistics.median(budget for budget in played.budgets if budget))) > 0.93 * speed(depth)


@pytest.mark.parametrize("name", MACHINES)
def test_it_falls_back_to_plain_decoding(name: str) -> None:
    played = play(MACHINES[name], adaptive(), [steady(0.0)], 1500)
    late = played.budgets[300:]
    assert share_speculated(late) < 0.08
    assert played.ratio > 0.965


def test_a_draft_model_that_cannot_pay_is_hardly_tried() -> None:
    played = play(LARGE_DRAFT, adaptive(), [steady(0.6)] * 8, 64)
    assert share_speculated(played.budgets) < 0.02


def test_it_comes_back_when_the_text_gets_easier() -> None:
    played = play(SMALL_DRAFT, adaptive(), [switching(0.0, 0.9, at=400)], 2000)
    assert share_speculated(played.budgets[-100:]) > 0.9 and played.ratio > 1.8
    assert share_speculated(played.budgets[:380]) < 0.15


def test_it_stops_when_the_text_gets_harder() -> None:
    played = play(SMALL_DRAFT, adaptive(), [switching(0.9, 0.0, at=400)], 1200)
    assert share_speculated(played.budgets[-600:]) < 0.1


def test_the_next_request_begins_with_what_was_learned() -> None:
    policy = adaptive()
    first = play(SMALL_DRAFT, policy, [steady(0.9)], 128)
    second = play(SMALL_DRAFT, policy, [steady(0.9)], 128)
    assert first.budgets[:3] == [0, 0, 0] and second.budgets[0] > 3


def test_a_slow_first_call_does_not_end_it() -> None:
    """The first draft compiles something: 15 plain steps' worth of it."""

    compilations = [15.0]

    class Compiles(AdaptivePolicy):
        def observe(self, event):  # type: ignore[no-untyped-def]
            if event.get("budget") and compilations:
                event = {**event, "draft_s": event["draft_s"] + compilations.pop()}
            super().observe(event)

        def for_request(self) -> AdaptivePolicy:
            return Compiles(self.config, self.learned)

    quick = Machine(draft_per_token=0.05)
    assert share_speculated(play(quick, Compiles(AdaptiveConfig()), [steady(0.9)], 4000).budgets[-100:]) > 0.9


ADVERSARIES: dict[str, Rate] = {
    "nothing": steady(0.0),
    "just below what pays": steady(0.3),
    "good, then nothing": switching(0.9, 0.0, at=30),
    "flips every 10": alternating(0.95, 0.0, every=10),
    "flips every 50": alternating(0.95, 0.0, every=50),
    "right where it is tried, then wrong": alternating(1.0, 0.0, every=6),
}


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("name", MACHINES)
def test_it_never_loses_five_per_cent(name: str, adversary: str) -> None:
    for seed in range(3):
        played = play(MACHINES[name], adaptive(), [ADVERSARIES[adversary]] * 8, 64, seed=seed)
        assert played.ratio > 0.95, (seed, played.ratio)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """The draft model's prefill takes at most half as long as the target's, which is what the policy expects."""
    prefill = draw(st.floats(0.005, 0.08))
    return Machine(
        draft=draw(st.floats(0, 1.5)),
        draft_per_token=draw(st.floats(0, 1)),
        verify_per_token=draw(st.floats(0, 0.3)),
        feed=draw(st.sampled_from([0.0, 0.1, 0.5])) * prefill,
        prefill=prefill,
        silent=draw(st.sampled_from([0.0, 0.3, 0.9])),
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(machines(), st.integers(0, 10**6), st.integers(20, 300))
def test_the_loss_is_bounded_on_any_machine_for_any_text(machine: Machine, seed: int, new_tokens: int) -> None:
    """At every length: the promised share, and once the surprise of a deepest cycle, whose cost could not be known."""
    rng = random.Random(seed)
    levels = [rng.choice([0.0, 0.3, 0.7, 1.0]) for _ in range(40)]
    span = rng.randint(3, 60)

    def rate(n: int) -> float:
        return levels[n // span % len(levels)]

    played: Played = play(machine, adaptive(), [rate] * rng.randint(1, 6), new_tokens, seed=seed)
    assert played.seconds <= 1.035 * played.plain_s + machine.cycle(max(2, *played.budgets))


def test_the_same_times_give_the_same_budgets() -> None:
    once, again = (play(SMALL_DRAFT, adaptive(), [alternating(0.9, 0.1, every=40)] * 3, 200) for _ in range(2))
    assert once == again and len(set(once.budgets)) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max": 0}, r"^policy\.max: 0 must be 1 or more"),
        ({"retry": 0}, r"^policy\.retry: 0 must be 1 or more"),
        ({"loss": 1.0}, r"^policy\.loss: 1\.0 must be 0 or more and below 1"),
        ({"margin": -0.1}, r"^policy\.margin: -0\.1 must be 0 or more and below 1"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plugin_of("policy", "adaptive", **options)


def test_a_drafter_without_a_cache_of_its_own_is_tried_behind_a_long_prompt() -> None:
    """There is nothing to catch up with, however long the prompt; a draft model's prefill would not pay any more."""
    machine = Machine(draft_per_token=0.3, verify_per_token=0.03, feed=1e-9, prefill=0.066)
    found = {}
    for catches_up in (True, False):
        source = Known(None)
        source.catches_up = catches_up
        policy = AdaptivePolicy(AdaptiveConfig())
        policy.prepare(source, branches=False)
        found[catches_up] = play(machine, policy, [steady(0.9)], 60, prompt=1000)
    assert not any(found[True].budgets) and found[False].ratio > 1.05
