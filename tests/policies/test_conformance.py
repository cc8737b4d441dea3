"""check_policy: it passes the installed policies, and names the fault of each faulty one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, CostSource, Policy, Request
from spec_sdk.registry import Registry
from spec_sdk.testing import check_policy


@pytest.mark.parametrize("name", ["fixed", "heuristic", "adaptive", "break_even"])
def test_the_installed_policies_conform(name: str) -> None:
    plugin: Any
    plugin, config = Registry.discover().configure("policy", {"name": name})
    check_policy(lambda: plugin(config), answers=100)


def test_every_policy_of_ours_is_among_them() -> None:
    ours = [offer.plugin.name for offer in Registry.discover().offers("policy") if offer.package == "spec-sdk"]
    assert sorted(ours) == ["adaptive", "break_even", "fixed", "heuristic"]


class Faulty(Policy):
    name = "faulty"

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)

    def budget(self, request: Request) -> Budget:
        return Budget(2)


class SeesTheFuture(Faulty):
    """Drafts where the next random number is small."""

    def budget(self, request: Request) -> Budget:
        ahead = torch.Generator()
        ahead.set_state(request.rng.get_state())
        return Budget(2 if float(torch.rand((), generator=ahead, dtype=torch.float64)) < 0.5 else 0)


class TakesNumbers(Faulty):
    def budget(self, request: Request) -> Budget:
        return Budget(2 if request.uniforms(1)[0] < 0.5 else 1)


class CountsItsCalls(Faulty):
    calls = 0

    def budget(self, request: Request) -> Budget:
        self.calls += 1
        return Budget(self.calls % 3)


class Meddles(Faulty):
    def budget(self, request: Request) -> Budget:
        request._state.max_new_tokens += 1
        return Budget(2)


class BelowZero(Faulty):
    def budget(self, request: Request) -> Budget:
        return Budget(-1)


class GivesANumber(Faulty):
    def budget(self, request: Request) -> Any:
        return 4


class CostsFall(Faulty):
    def budget(self, request: Request) -> Budget:
        return Budget(2, 8, node_costs=(0.0, 0.3, 0.2))


class MeasuresAnyway(Faulty):
    def prepare(self, costs: CostSource, branches: bool) -> None:
        costs.seconds_of_plain_pass()


class ForgetsOne(Faulty):
    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        return super().budgets(requests, policies)[:1]


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (SeesTheFuture, "the budget hangs on what is yet to be drawn"),
        (TakesNumbers, "policy 'faulty': its budget took random numbers of the request"),
        (CountsItsCalls, "asked twice it gave two budgets, 1 levels of 4096 nodes and then 2 of 4096"),
        (Meddles, "its budget changed the request's max_new_tokens"),
        (BelowZero, "a budget's depth is a whole number of 0 or more, not -1"),
        (GivesANumber, "4 is no Budget"),
        (CostsFall, "its node_costs say that 3 nodes cost less than 2"),
        (MeasuresAnyway, "it measures a plain pass where that is said to be unavailable"),
        (ForgetsOne, "budgets returned 1 budget for 2 requests"),
    ],
)
def test_a_faulty_policy_is_named(policy: Callable[[], Policy], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_policy(policy, answers=100)


def test_the_sound_policy_that_they_spoil_conforms() -> None:
    check_policy(Faulty, answers=50)
