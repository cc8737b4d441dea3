"""The paper's γ heuristic: 5 at first, 2 more when everything was accepted, 1 less otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk.errors import UserError
from spec_sdk.policy import HeuristicConfig, HeuristicPolicy
from tests.support.configured import plugin_of

ANY: Any = None


def depths(policy: HeuristicPolicy, cycles: list[tuple[int, int]]) -> list[int]:
    """The budget before each cycle (drafted, accepted), and after the last."""
    budgets = [policy.budget(ANY).depth]
    for drafted, accepted in cycles:
        policy.observe({"event": "cycle", "drafted": drafted, "accepted": accepted})
        budgets.append(policy.budget(ANY).depth)
    return budgets


def test_the_papers_numbers() -> None:
    policy = HeuristicPolicy(HeuristicConfig())
    policy.observe({"event": "prefill"})
    assert depths(policy, [(5, 5), (7, 7), (9, 8), (8, 0), (7, 7)]) == [5, 7, 9, 8, 7, 9]


def test_a_cycle_without_a_draft_changes_nothing() -> None:
    assert depths(HeuristicPolicy(HeuristicConfig()), [(0, 0), (2, 2), (0, 0)]) == [5, 5, 7, 7]


def test_it_stays_between_its_limits() -> None:
    config = HeuristicConfig(start=2, grow=3, shrink=2, min=1, max=4)
    assert depths(HeuristicPolicy(config), [(2, 0), (1, 0), (1, 1), (4, 4)]) == [2, 1, 1, 4, 4]


def test_requests_share_nothing() -> None:
    policy = HeuristicPolicy(HeuristicConfig())
    assert depths(policy, [(5, 5)])[-1] == 7
    assert depths(policy.for_request(), []) == [5]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min": 0}, r"^policy\.min: 0 must be 1 or more$"),
        ({"start": 30}, r"^policy\.start: 30 must lie between policy\.min, 1, and policy\.max, 20$"),
        ({"min": 5, "max": 2}, r"^policy\.min: 5 must be at most policy\.max, 2$"),
        ({"grow": -1}, r"^policy\.grow: -1 must be 0 or more"),
    ],
)
def test_bad_options(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plugin_of("policy", "heuristic", **options)
