"""Does a policy give budgets that can be used, and leave the distribution of the output as it is?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

import torch

from spec_sdk.contracts import Budget, CostCurve, PassCosts, Policy, Request, SamplingParams
from spec_sdk.counted import counted
from spec_sdk.engine.faults import budget_fault
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.testing.defaults import MultiStepRule, reference_sampler, request_for
from spec_sdk.testing.service import contents
from spec_sdk.testing.statistics import SIGNIFICANCE, cell_of, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.tables import DrawPlan, PlannedDraw, TableDrafter, TableModel

VOCABULARY, TOKENS, PROMPT = 4, 3, (3, 1, 2)
PLAN: DrawPlan = [[PlannedDraw("with_replacement")] * 2] * 4
ANSWERS = 400
NUMBERS = 3
"""Random numbers that come next, which no budget may hang on."""
PARTS = 4
"""Of [0, 1), in which they are counted."""

MakePolicy = Callable[[], Policy]


def check_policy(make_policy: MakePolicy, *, answers: int = ANSWERS, seed: int = 0) -> None:
    """Raise AssertionError unless the policies that ``make_policy`` makes, a new one per call, behave.

    With costs of passes that are known, that must be measured, and that cannot be had, for drafters of chains and of
    trees, through the scheduler on tables: every budget is usable (depth 0 or more, 1 node or more, costs that never
    fall), asking once more gives the same one, and nothing of the request is changed, its random numbers included.
    Several requests get one budget each. Over ``answers`` answers budgets do not hang on random numbers that are yet to
    be drawn, and the joint distribution of three tokens is the target's (χ²).
    """
    run_checks(policy_checks(make_policy, answers=answers, seed=seed))


def policy_checks(make_policy: MakePolicy, *, answers: int = ANSWERS, seed: int = 0) -> list[Check]:
    """The checks of :func:`check_policy`, one by one."""
    return [
        Check("usable budgets, whatever is known of what passes cost", lambda: _check_costs(make_policy, seed)),
        Check("one budget for each of several requests", lambda: _check_together(make_policy, seed)),
        Check(
            "budgets do not hang on random numbers to come; answers have the target's distribution",
            lambda: _check_answers(make_policy, answers, seed),
        ),
    ]


class KnownCosts:
    """Made-up costs: a pass of n nodes takes 1 + (n - 1) / 10 ms, a draft model's a fifth of it."""

    expected_tokens = 64
    catches_up = True
    longest_catch_up: int | None = None
    weighs_time = False

    def __init__(self, kept: bool, unavailable: str | None = None, slow: bool = False) -> None:
        self.unavailable = unavailable
        self._kept, self._slow = kept, slow

    def kept(self) -> PassCosts | None:
        return self._costs() if self._kept else None

    def measure(self) -> PassCosts | None:
        assert self.unavailable is None or self._slow, "it measures where that is said to be unavailable"
        return None if self._slow or self.unavailable else self._costs()

    def seconds_of_plain_pass(self) -> float:
        assert self.unavailable is None, "it measures a plain pass where that is said to be unavailable"
        return 1e-3

    @staticmethod
    def _costs() -> PassCosts:
        def curve(first: float) -> CostCurve:
            sizes = (1, 2, 4, 8, 16, 32)
            return CostCurve({(c, n): first * (1 + (n - 1) / 10) * (1 + c / 1e4) for c in (0, 1000) for n in sizes})

        return PassCosts(curve(1e-3), curve(2e-4), 0.1)


SOURCES: Mapping[str, Callable[[], KnownCosts]] = {
    "costs that were measured before": lambda: KnownCosts(True),
    "costs that must be measured": lambda: KnownCosts(False),
    "costs too slow to measure": lambda: KnownCosts(False, slow=True),
    "costs that cannot be measured": lambda: KnownCosts(False, "passes cannot be measured here"),
}


class Watching(Policy):
    """Another policy, whose budgets are looked at and kept in ``seen`` with the random numbers that came next."""

    name = "watching"

    def __init__(self, inner: Policy, where: str, seen: dict[int, list[tuple[float, ...]]]) -> None:
        super().__init__(inner.config)
        self.inner, self.where, self.seen = inner, where, seen

    def budget(self, request: Request) -> Budget:
        """The inner policy's, asked twice."""
        state = request._state
        before, numbers = contents(state), state.rng.get_state()
        budget, again = self.inner.budget(request), self.inner.budget(request)
        who = f"{self.where}: policy {self.inner.name!r}"
        after = contents(state)
        changed = [name for name, value in after.items() if value != before[name]]
        assert not changed, f"{who}: its budget changed the request's {', '.join(changed)}"
        assert torch.equal(numbers, state.rng.get_state()), f"{who}: its budget took random numbers of the request"
        check_budget(budget, who)
        assert (budget.depth, budget.nodes) == (again.depth, again.nodes), (
            f"{who}: asked twice it gave two budgets, {budget.depth} levels of {budget.nodes} nodes and then "
            f"{again.depth} of {again.nodes}: what it learns, it learns in observe"
        )
        self._note(request, budget)
        return budget

    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        """By :meth:`budget`, unless the inner policy has requests share what there is."""
        if type(self.inner).budgets is Policy.budgets:
            return super().budgets(requests, policies)
        own = [policy.inner if isinstance(policy, Watching) else policy for policy in policies]
        budgets = self.inner.budgets(requests, own)
        for request, budget in zip(requests, budgets, strict=True):
            check_budget(budget, f"{self.where}: policy {self.inner.name!r}")
            self._note(request, budget)
        return budgets

    def _note(self, request: Request, budget: Budget) -> None:
        ahead = torch.Generator()
        ahead.set_state(request.rng.get_state())
        coming: list[float] = torch.rand(NUMBERS, generator=ahead, dtype=torch.float64).tolist()
        self.seen[budget.depth].append(tuple(coming))

    def observe(self, event: Mapping[str, Any]) -> None:
        self.inner.observe(event)

    def for_request(self) -> Policy:
        own = self.inner.for_request()
        assert isinstance(own, Policy), f"{self.where}: for_request returned {own!r}, which is no policy"
        return Watching(own, self.where, self.seen)


def check_budget(budget: object, who: str) -> None:
    """Raise AssertionError unless a drafter can go by ``budget``."""
    fault = budget_fault(budget)
    assert fault is None, f"{who}: {fault}"
    assert isinstance(budget, Budget)
    costs = budget.node_costs
    assert all(isfinite(cost) for cost in costs), f"{who}: its node_costs are not finite: {costs}"
    falls = next((n for n, (less, more) in enumerate(pairwise(costs), start=1) if more < less), None)
    assert falls is None, f"{who}: its node_costs say that {falls and falls + 1} nodes cost less than {falls}"
    for name in ("level_cost", "tokens_per_second"):
        value = getattr(budget, name)
        assert isfinite(value) and value >= 0, f"{who}: its {name} is {value}"


def _check_costs(make_policy: MakePolicy, seed: int) -> str:
    for name, source in SOURCES.items():
        for branches in (False, True):
            policy = make_policy()
            policy.prepare(source(), branches)
            where = f"{name}, {'trees' if branches else 'chains'}"
            for _ in _sampled(Watching(policy, where, defaultdict(list)), 6, seed):
                pass
    return f"{len(SOURCES)} kinds of costs, chains and trees"


def _check_together(make_policy: MakePolicy, seed: int) -> str:
    policy = make_policy()
    policy.prepare(SOURCES["costs that were measured before"](), True)
    sampler = reference_sampler(SamplingParams(temperature=1.0))
    for count in (1, 2, 5):
        states = [request_for([*PROMPT, i % VOCABULARY], sampler, seed + i, slot=i) for i in range(count)]
        own = [policy.for_request() for _ in states]
        before = [contents(state) for state in states]
        budgets = policy.budgets([state.view for state in states], own)
        assert len(budgets) == count, (
            f"budgets returned {counted(len(budgets), 'budget')} for {counted(count, 'request')}"
        )
        for number, budget in enumerate(budgets):
            check_budget(budget, f"request {number} of {count}: policy {policy.name!r}")
        assert before == [contents(state) for state in states], "budgets changed something of a request"
    return "1, 2 and 5 requests"


def _check_answers(make_policy: MakePolicy, answers: int, seed: int) -> str:
    policy = make_policy()
    policy.prepare(SOURCES["costs that were measured before"](), True)
    seen: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    counts = torch.zeros(VOCABULARY**TOKENS, dtype=torch.float64)
    for tokens in _sampled(Watching(policy, "answers", seen), answers, seed):
        counts[cell_of(tokens, VOCABULARY)] += 1
    for depth, numbers in seen.items():
        for i in range(NUMBERS):
            observed = torch.zeros(PARTS, dtype=torch.float64)
            for coming in numbers:
                observed[int(PARTS * coming[i])] += 1
            probability = goodness_of_fit(observed, torch.full_like(observed, len(numbers) / PARTS))
            assert probability > SIGNIFICANCE / 2 / (len(seen) * NUMBERS), (
                f"where the budget had depth {depth}, random number {i} after it lay in the quarters of [0, 1) "
                f"{', '.join(str(int(n)) for n in observed)} times: the budget hangs on what is yet to be drawn"
            )
    sampler = reference_sampler(SamplingParams(temperature=1.0))
    expected = answers * joint_distribution(TableModel(VOCABULARY, seed + 41), sampler, PROMPT, TOKENS)
    probability = goodness_of_fit(counts, expected)
    assert probability > SIGNIFICANCE / 2, (
        f"the joint distribution of {TOKENS} tokens is not the target's (χ² probability {probability:.1e} over "
        f"{answers} answers)"
    )
    return f"{answers} answers, depths {', '.join(map(str, sorted(seen)))}"


def _sampled(policy: Policy, answers: int, seed: int) -> Iterator[list[int]]:
    target, *tables = (TableModel(VOCABULARY, seed + i) for i in (41, 42))
    sampler = reference_sampler(SamplingParams(temperature=1.0))
    return sample_tokens(
        target, TableDrafter(tables, PLAN), MultiStepRule(None), sampler, PROMPT, TOKENS, answers, seed, policy=policy
    )
