"""Tokens that a constraint forces are neither a gain nor a cost of drafting to a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spec_sdk.contracts import Policy, SamplingParams
from spec_sdk.policy.adaptive import AdaptiveConfig, AdaptivePolicy
from spec_sdk.policy.break_even import BreakEvenConfig, BreakEvenPolicy
from spec_sdk.policy.forced_token_costs import ForcedTokens
from spec_sdk.testing import request_for
from spec_sdk_samplers.reference import ReferenceSampler

PLAIN_S, ROW_S, LEVEL_S = 1.0, 0.2, 0.5


def cycle(budget: int, forced: int, accepted: int) -> dict[str, Any]:
    """One on a machine where every row beyond the first takes a fifth of a plain step, every level half of one."""
    own = budget
    rows = 1 + forced + own
    return {
        "event": "cycle",
        "prefix": 100,
        "budget": budget,
        "draft_s": LEVEL_S * budget,
        "verify_s": PLAIN_S + ROW_S * (rows - 1),
        "recover_s": 0.0,
        "tree_nodes": rows,
        "drafted": own,
        "accepted": accepted,
        "level_sizes": [1] * own,
        "accepted_ranks": [1] * accepted,
        "tokens": [5] * (forced + accepted + 1),
        "constraint": {"seconds": 0.0, "pruned": 0, "taken": forced, "added": 0, "added_accepted": 0},
    }


def granted(policy: Policy, forced: int, accepted: int, cycles: int = 120, first: Sequence[int] | None = None) -> int:
    """Cycles that were granted a draft."""
    request = request_for([1, 2, 3], ReferenceSampler(None, SamplingParams()), 0, 10_000).view
    policy.observe({"event": "prefill", "seconds": 1.0, "drafter_s": None, "tokens": 2, "draft": None})
    for beginning in (forced, forced, 0, 0, 0) if first is None else first:
        policy.observe(cycle(0, beginning, 0))
    drafted = 0
    for _ in range(cycles):
        depth = policy.budget(request).depth
        drafted += depth > 0
        policy.observe(cycle(depth, forced, min(accepted, depth)))
    return drafted


@pytest.mark.parametrize(
    "make", [lambda: BreakEvenPolicy(BreakEvenConfig()), lambda: AdaptivePolicy(AdaptiveConfig()).for_request()]
)
def test_drafting_is_judged_without_them(make: Any) -> None:
    """Six forced tokens with every cycle make no draft worth its time of which nothing is accepted, and spoil none."""
    assert granted(make(), forced=6, accepted=0) < 40
    assert granted(make(), forced=0, accepted=0) < 40
    assert granted(make(), forced=6, accepted=12) > 60


def test_what_an_event_tells_of_them() -> None:
    assert ForcedTokens.of({"tokens": [1]}) == ForcedTokens(0, 0)
    event = cycle(3, 4, 2)
    assert ForcedTokens.of(event) == ForcedTokens(4, 4)
    event["constraint"] |= {"added": 2, "added_accepted": 1}
    event["tree_nodes"] += 2
    assert ForcedTokens.of(event) == ForcedTokens(4, 5)


@pytest.mark.parametrize(
    "make", [lambda: BreakEvenPolicy(BreakEvenConfig()), lambda: AdaptivePolicy(AdaptiveConfig()).for_request()]
)
def test_drafting_begins_where_no_step_is_without_them(make: Any) -> None:
    assert granted(make(), forced=3, accepted=9, first=()) > 40
