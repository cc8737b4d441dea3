"""Odd distributions: tokens ruled out, one token, p = q, p and q apart, ties, a vocabulary of one. By enumeration."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Drafter, SamplingParams, Verifier
from spec_sdk.testing import DrawPlan, PlannedDraw, TableDrafter, TableModel, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TreeBuilder
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.greedy import Greedy
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from spec_sdk_verifiers.typical import Typical, TypicalConfig
from tests.losslessness.enumeration import completed_distribution, cycle_distribution

PROMPT, SAMPLED = (0,), SamplingParams(temperature=1.0)
LOSSLESS = (MultiStep(None), NaiveTree(None), ChainRejection(None), BlockVerification(None))
NONE = -math.inf
# each distribution is normalised by softmax: a peak of 90 leaves the others less than float32 can add to it
DISTRIBUTIONS = {
    "one token": [0.0, NONE, NONE],
    "another token": [NONE, 0.0, NONE],
    "two tokens": [NONE, 0.3, 0.0],
    "even": [0.0, 0.0, 0.0],
    "skewed": [2.0, 0.0, -1.0],
    "a peak": [0.0, 90.0, 0.0],
    "hardly a third": [0.0, 0.0, -90.0],
}
PAIRS = [*itertools.product(DISTRIBUTIONS, DISTRIBUTIONS)]
CHAIN_PLANS: list[DrawPlan] = [
    [[PlannedDraw("with_replacement")], [PlannedDraw("with_replacement")]],
    [[PlannedDraw("chosen")], [PlannedDraw("without_replacement")]],
]
TREE_PLANS: list[DrawPlan] = [
    [[PlannedDraw("without_replacement"), PlannedDraw("without_replacement")], [PlannedDraw("with_replacement")]],
    [[PlannedDraw("chosen"), PlannedDraw("with_replacement"), PlannedDraw("without_replacement")]],
]


def table(*distributions: list[float], seed: int = 0) -> TableModel:
    """A model whose every row is one of ``distributions``, at random."""
    model, rng = TableModel(len(distributions[0]), seed), torch.Generator().manual_seed(seed)
    rows = torch.randint(len(distributions), (model.table_RV.shape[0],), generator=rng)
    model.table_RV = torch.tensor(distributions)[rows]
    return model


def assert_lossless(verifier: Verifier, target: TableModel, draft: TableModel, plan: DrawPlan) -> None:
    def make_drafter() -> Drafter:
        return TableDrafter([draft], plan)

    emitted = cycle_distribution(target, make_drafter, verifier, SAMPLED, PROMPT)
    distribution = completed_distribution(emitted, target, SAMPLED, PROMPT, len(plan) + 1)
    expected = joint_distribution(target, ReferenceSampler(None, SAMPLED), PROMPT, len(plan) + 1)
    assert float((distribution - expected).abs().max()) < 1e-6
    assert not bool((distribution[expected == 0] > 0).any()), "a token that the target rules out was emitted"


@pytest.mark.parametrize("verifier", LOSSLESS, ids=lambda verifier: verifier.name)
def test_every_pair_of_distributions(verifier: Verifier) -> None:
    for p, q in PAIRS:
        for plan in CHAIN_PLANS if verifier.chains_only else TREE_PLANS:
            assert_lossless(verifier, table(DISTRIBUTIONS[p]), table(DISTRIBUTIONS[q]), plan)


@pytest.mark.parametrize("verifier", LOSSLESS, ids=lambda verifier: verifier.name)
def test_distributions_that_differ_from_path_to_path(verifier: Verifier, scale: Callable[[int, int], int]) -> None:
    for seed in range(scale(4, 24)):
        target = table(*DISTRIBUTIONS.values(), seed=seed)
        for draft in (target, table(*DISTRIBUTIONS.values(), seed=seed + 100)):
            for plan in CHAIN_PLANS if verifier.chains_only else TREE_PLANS:
                assert_lossless(verifier, target, draft, plan)


@pytest.mark.parametrize("verifier", LOSSLESS[:2], ids=lambda verifier: verifier.name)
def test_three_distinct_draws_where_draft_and_target_share_little(verifier: Verifier) -> None:
    """Two draws are mostly rejected. The third then decides between tokens that q, less both of them, likes otherwise
    than p; a vocabulary of three or four leaves it no choice.
    """
    target, draft = table([-4.0, -4.0, -4.0, 1.4, 0.0]), table([4.0, 3.9, -2.0, -4.0, 0.7])
    assert_lossless(verifier, target, draft, [[PlannedDraw("without_replacement")] * 3])


@pytest.mark.parametrize("verifier", LOSSLESS[2:] + LOSSLESS[:1], ids=lambda verifier: verifier.name)
def test_a_draft_with_the_targets_own_distribution_is_always_kept(verifier: Verifier) -> None:
    for distribution in DISTRIBUTIONS.values():
        drafter = functools.partial(TableDrafter, [table(distribution)], CHAIN_PLANS[0])
        emitted = cycle_distribution(table(distribution), drafter, verifier, SAMPLED, PROMPT)
        assert {len(tokens) for tokens, probability in emitted.items() if probability > 1e-6} == {3}


@pytest.mark.parametrize("verifier", LOSSLESS[2:] + LOSSLESS[:1], ids=lambda verifier: verifier.name)
def test_a_draft_apart_from_the_target_is_never_kept(verifier: Verifier) -> None:
    target, draft = table(DISTRIBUTIONS["two tokens"]), table(DISTRIBUTIONS["one token"])
    emitted = cycle_distribution(target, lambda: TableDrafter([draft], CHAIN_PLANS[0]), verifier, SAMPLED, PROMPT)
    assert {len(tokens) for tokens in emitted} == {1}


@pytest.mark.parametrize(
    ("verifier", "params"),
    [
        (Greedy(None), SamplingParams()),
        *itertools.product((*LOSSLESS, Typical(TypicalConfig())), (SamplingParams(), SAMPLED)),
    ],
    ids=lambda value: value.name if isinstance(value, Verifier) else f"temperature {value.temperature}",
)
def test_a_vocabulary_of_one(verifier: Verifier, params: SamplingParams) -> None:
    builder, only_V = TreeBuilder(0), torch.ones(1)
    node = builder.add(0, 0, "without_replacement", only_V)
    node = builder.add(node, 0, "with_replacement", only_V)
    builder.add(node, 0, "chosen")
    request = request_for([0], ReferenceSampler(None, params), 0).view
    verdict = verifier.verify_one(builder.build().tree, torch.full((4, 1), -3.0), request)
    assert verdict.tokens == [0, 0, 0, 0]


@pytest.mark.parametrize("verifier", [Greedy(None), *LOSSLESS], ids=lambda verifier: verifier.name)
def test_greedy_with_ties_and_tokens_ruled_out(verifier: Verifier) -> None:
    """The lowest of the best tokens, whichever of them was drafted."""
    builder = TreeBuilder(0)
    builder.add(builder.add(0, 1, "chosen"), 2, "chosen")
    logits_NV = torch.tensor([[NONE, 2.0, 2.0], [1.0, NONE, 1.0], [0.0, 0.0, 0.0]])
    request = request_for([0], ReferenceSampler(None, SamplingParams()), 0).view
    assert verifier.verify_one(builder.build().tree, logits_NV, request).tokens == [1, 0]


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.3), (0.09, 0.0), (0.09, 0.3), (1.0, 1.0)])
def test_typical_keeps_no_token_that_is_ruled_out(epsilon: float, delta: float, params: SamplingParams) -> None:
    builder = TreeBuilder(0)
    for token in range(3):
        builder.add(0, token, "chosen")
    logits_NV = torch.tensor([DISTRIBUTIONS["two tokens"]] * 4)
    for seed in range(20):
        request = request_for([0], ReferenceSampler(None, params), seed).view
        verdict = Typical(TypicalConfig(epsilon, delta)).verify_one(builder.build().tree, logits_NV, request)
        assert 0 not in verdict.tokens
