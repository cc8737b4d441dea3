"""Budgets that follow acceptance and time keep the output's distribution; one that sees the future does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Policy, Request, SamplingParams
from spec_sdk.policy import AdaptiveConfig, AdaptivePolicy, HeuristicConfig, HeuristicPolicy, acceptance
from spec_sdk.testing import (
    SIGNIFICANCE,
    PlannedDraw,
    TableDrafter,
    TableModel,
    goodness_of_fit,
    joint_distribution,
    sample_tokens,
)
from spec_sdk.testing.statistics import cell_of
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep

LEVEL, NODE = 0.3, 0.1
VOCABULARY, TOKENS, PROMPT = 4, 3, (3, 1, 2)
WIDE_PLAN = [[PlannedDraw("without_replacement")] * 3] * 4
PLAN = [[PlannedDraw("with_replacement")] * 2] * 4
Scale = Callable[[int, int], int]


class ByAcceptance(Policy):
    """One deeper than what was accepted last, and a plain step after every cycle that accepted nothing."""

    name = "by_acceptance"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.depth = 2

    def budget(self, request: Request) -> Budget:
        return Budget(self.depth)

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "cycle":
            self.depth = event["accepted"] + 1 if event["accepted"] or not event["budget"] else 0


class InventedTimes(AdaptivePolicy):
    """``adaptive`` on a machine where a drafted level takes ``LEVEL`` plain steps and a node ``NODE``. Keeps the depth
    and the nodes of all trees in ``asked``.
    """

    asked: list[tuple[int, int]] = []

    def for_request(self) -> AdaptivePolicy:
        return InventedTimes(self.config, self.learned)

    def observe(self, event: Mapping[str, Any]) -> None:
        times = {"draft_s": LEVEL * event.get("budget", 0), "verify_s": 1 - NODE + NODE * event.get("tree_nodes", 1)}
        if event["event"] == "cycle":
            self.asked.append((event["budget"], event["tree_nodes"]))
        super().observe({**event, **times, "recover_s": 0.0, "seconds": 1.0, "drafter_s": None})


class SeesTheFuture(Policy):
    """Drafts depending on what the random numbers that the cycle is about to use would draw."""

    name = "sees_the_future"

    def budget(self, request: Request) -> Budget:
        copy = torch.Generator()
        copy.set_state(request.rng.get_state())
        token = request.sampler.draw(torch.full((VOCABULARY,), 1 / VOCABULARY), copy)
        return Budget(2 if token < VOCABULARY // 2 else 0)


def probability_of_sample(policy: Policy, draws: int, plan: list[list[PlannedDraw]] = PLAN) -> float:
    target, *tables = (TableModel(VOCABULARY, seed) for seed in (41, 42))
    sampler = ReferenceSampler(None, SamplingParams(temperature=1.0))
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(
        target, TableDrafter(tables, plan), MultiStep(None), sampler, PROMPT, TOKENS, draws, policy=policy
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    return goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS))


@pytest.mark.parametrize("policy", [ByAcceptance(None), HeuristicPolicy(HeuristicConfig(start=1, max=4))])
def test_a_depth_that_follows_acceptance(policy: Policy, scale: Scale) -> None:
    assert probability_of_sample(policy, scale(1500, 20_000)) > SIGNIFICANCE


def test_adaptive(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a short memory and without a margin, so that depth and nodes hang on what was accepted lately."""
    InventedTimes.asked.clear()
    short = {"USUAL_WEIGHT": 0.3, "PRIOR_WEIGHT": 1.0, "SIBLINGS_FORGET": 0.7, "SIBLINGS_PRIOR": 1.0}
    for name, value in short.items():
        monkeypatch.setattr(acceptance, name, value)
    policy = InventedTimes(AdaptiveConfig(max=4, loss=0.3, margin=0.0, retry=1))
    assert probability_of_sample(policy, scale(1500, 20_000), WIDE_PLAN) > SIGNIFICANCE
    depths = Counter(depth for depth, _ in InventedTimes.asked)
    assert depths[0] > 100 and min(depths[1], depths[2]) > 20, depths
    # of one depth, trees of several sizes
    assert sum(count > 20 for (depth, _), count in Counter(InventedTimes.asked).items() if depth == 1) >= 2


def test_a_policy_that_sees_random_numbers_to_come_is_found_out(scale: Scale) -> None:
    assert probability_of_sample(SeesTheFuture(None), scale(1500, 20_000)) < SIGNIFICANCE
