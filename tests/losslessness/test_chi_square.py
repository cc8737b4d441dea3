"""The joint distribution of three tokens sampled through the whole scheduler is the target's (χ²)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from scipy import stats

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.testing import SIGNIFICANCE, TableDrafter, TableModel, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.statistics import cell_of
from spec_sdk.testing.tables import DrawPlan
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.plans import CHAINS, SAMPLINGS, TREES, WIDE

VOCABULARY, TOKENS, PROMPT = 4, 3, (3, 1, 2)
PLANS = CHAINS | TREES | WIDE
EVERYWHERE = ("two drawn tokens", "all kinds, two drafters")
"""Kinds of trees that are tried with all sampling parameters; the others with one of them each."""
CASES = [
    *((plan, sampling) for plan in EVERYWHERE for sampling in SAMPLINGS),
    *((plan, list(SAMPLINGS)[i % len(SAMPLINGS)]) for i, plan in enumerate(PLANS) if plan not in EVERYWHERE),
]
Scale = Callable[[int, int], int]


def marks_of(plan: str, sampling: str) -> list[pytest.MarkDecorator]:
    """Every plan and all sampling parameters are tried outside the full tier; the enumeration has all pairs."""
    return [pytest.mark.full] * (plan == EVERYWHERE[1] and sampling != "temperature 0.6")


def probability_of_sample(
    verifier: Verifier,
    plan: DrawPlan,
    params: SamplingParams,
    draws: int,
    prompt: Sequence[int] = PROMPT,
    max_new_tokens: int | None = None,
) -> float:
    target, *tables = (TableModel(VOCABULARY, seed) for seed in (41, 42, 43))
    sampler = ReferenceSampler(None, params)
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(
        target,
        TableDrafter(tables, plan),
        verifier,
        sampler,
        prompt,
        TOKENS,
        draws,
        max_new_tokens=max_new_tokens,
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert counts.sum() == draws
    return goodness_of_fit(counts, draws * joint_distribution(target, sampler, prompt, TOKENS))


@pytest.mark.parametrize(("plan", "sampling"), [pytest.param(*case, marks=marks_of(*case)) for case in CASES])
def test_multi_step(plan: str, sampling: str, scale: Scale) -> None:
    probability = probability_of_sample(MultiStep(None), PLANS[plan], SAMPLINGS[sampling], scale(300, 20_000))
    assert probability > SIGNIFICANCE / len(CASES)


@pytest.mark.parametrize(("plan", "sampling"), [case for case in CASES if case[0] in CHAINS])
def test_chain_rejection(plan: str, sampling: str, scale: Scale) -> None:
    probability = probability_of_sample(ChainRejection(None), CHAINS[plan], SAMPLINGS[sampling], scale(300, 20_000))
    assert probability > SIGNIFICANCE / len(CASES)


def test_answers_that_end_after_three_tokens(scale: Scale) -> None:
    """Trees are cut to the tokens still wanted, and verdicts clipped: neither may move the distribution."""
    plan, params = WIDE["chosen and drawn everywhere"], SAMPLINGS["temperature 1"]
    draws = scale(300, 20_000)
    assert probability_of_sample(MultiStep(None), plan, params, draws, max_new_tokens=TOKENS) > SIGNIFICANCE


def test_a_prompt_of_one_token(scale: Scale) -> None:
    """Then nothing is in the cache when the first tree is scored."""
    plan, params = TREES["all kinds, two drafters"], SAMPLINGS["temperature 1"]
    assert probability_of_sample(MultiStep(None), plan, params, scale(300, 20_000), prompt=(2,)) > SIGNIFICANCE


def test_the_chi_square_is_scipys() -> None:
    rng = torch.Generator().manual_seed(4)
    expected = 20 + 100 * torch.rand(30, generator=rng, dtype=torch.float64)
    observed = torch.poisson(expected, generator=rng)
    expected *= observed.sum() / expected.sum()
    assert goodness_of_fit(observed, expected) == pytest.approx(stats.chisquare(observed, expected).pvalue, rel=1e-9)


def test_rare_cells_are_pooled_and_impossible_ones_decide() -> None:
    expected = torch.tensor([50.0, 50.0, 3.0, 4.0, 0.0])
    observed = torch.tensor([50.0, 50.0, 7.0, 0.0, 0.0])
    pooled = stats.chisquare([50, 50, 7], [50, 50, 7]).pvalue
    assert goodness_of_fit(observed, expected) == pytest.approx(pooled)
    assert goodness_of_fit(torch.tensor([50.0, 50.0, 6.0, 0.0, 1.0]), expected) == 0.0
