"""Requests that share steps keep the target's distribution, also where one's budget hangs on the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from spec_sdk.contracts import Budget, Policy, Request, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.testing import SIGNIFICANCE, PlannedDraw, TableDrafter, TableModel, goodness_of_fit, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.statistics import cell_of
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep

VOCABULARY, TOKENS, PROMPT, SLOTS = 4, 3, (3, 1, 2), 6
PLAN = [[PlannedDraw("with_replacement")] * 2] * 4
Scale = Callable[[int, int], int]


class SharesDepth(Policy):
    """So many drafted tokens for all requests together: most for those that are furthest, none for the last ones."""

    name = "shares_depth"

    def budget(self, request: Request) -> Budget:
        return Budget(2)

    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        left, granted = SLOTS, dict[int, int]()
        for request in sorted(requests, key=lambda request: (-request.new_tokens, request.id)):
            granted[request.id] = min(left, 1 + request.new_tokens)
            left -= granted[request.id]
        return [Budget(granted[request.id]) for request in requests]


class SpiesOnNeighbours(SharesDepth):
    """Lets a request draft only if what it would draw next is one of two tokens, when it has neighbours."""

    name = "spies_on_neighbours"

    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        return [Budget(2 if self.likes(request) or len(requests) == 1 else 0) for request in requests]

    def likes(self, request: Request) -> bool:
        copy = torch.Generator()
        copy.set_state(request.rng.get_state())
        uniform_V = torch.full((VOCABULARY,), 1 / VOCABULARY)
        return request.sampler.draw(uniform_V, copy) < VOCABULARY // 2


def answers(policy: Policy, draws: int) -> Iterator[list[int]]:
    """The first tokens of so many requests, SLOTS of them at a time, which join as others leave."""
    target, *tables = (TableModel(VOCABULARY, seed) for seed in (41, 42))
    scheduler = Scheduler(target, TableDrafter(tables, PLAN), MultiStep(None), policy, slots=SLOTS)
    sampler = ReferenceSampler(None, SamplingParams(temperature=1.0))
    tokens: dict[int, list[int]] = {}
    for number in range(draws):
        # answers of different lengths, so that requests do not stay in step
        state = request_for(PROMPT, sampler, seed=1000 + number, max_new_tokens=TOKENS + 3 + number % 4)
        state.id, tokens[number] = number, []
        scheduler.add(state)
    while scheduler.busy:
        for progress in scheduler.step():
            assert progress.error is None
            tokens[progress.request] += progress.tokens
    for answer in tokens.values():
        yield answer[:TOKENS]


def probability(policy: Policy, draws: int) -> float:
    target, sampler = TableModel(VOCABULARY, 41), ReferenceSampler(None, SamplingParams(temperature=1.0))
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in answers(policy, draws):
        counts[cell_of(tokens, VOCABULARY)] += 1
    return goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS))


def test_budgets_that_hang_on_the_batch_keep_the_distribution(scale: Scale) -> None:
    assert probability(SharesDepth(None), scale(1500, 20_000)) > SIGNIFICANCE


def test_budgets_that_look_at_random_numbers_to_come_do_not(scale: Scale) -> None:
    assert probability(SpiesOnNeighbours(None), scale(1500, 20_000)) < SIGNIFICANCE


@pytest.mark.parametrize("policy", [SharesDepth(None)])
def test_the_batch_does_change_the_budgets(policy: Policy) -> None:
    """Of the first test: it does not pass because nothing is shared."""
    sampler = ReferenceSampler(None, SamplingParams(temperature=1.0))
    views = []
    for number in range(4):
        state = request_for(PROMPT, sampler, seed=number)
        state.id = number
        state.tokens.extend([1] * number)
        views.append(state.view)
    assert [budget.depth for budget in policy.budgets(views, [policy] * 4)] == [0, 0, 2, 4]
