"""The distribution of ``exact`` is the target's, ``sigmoid``'s is not; and the repetition penalty loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from spec_sdk.contracts import Sampler, SamplingParams, Verifier
from spec_sdk.testing import (
    SIGNIFICANCE,
    TREES,
    TableDrafter,
    TableModel,
    check_sampler,
    check_verifier,
    goodness_of_fit,
    joint_distribution,
    sample_tokens,
)
from spec_sdk.testing.statistics import cell_of
from spec_sdk.testing.tables import DrawPlan, PlannedDraw
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidConfig, SigmoidSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import completed_distribution, cycle_distribution, deviation
from tests.losslessness.plans import CHAINS
from tests.losslessness.plans import TREES as TREE_PLANS

VOCABULARY, TOKENS, PROMPT = 4, 3, (3, 1, 1)
PENALISED = SamplingParams(temperature=0.8, repetition_penalty=1.6)
DRAWN_CHAIN: DrawPlan = [[PlannedDraw("with_replacement")]] * 3


def exact(params: SamplingParams) -> Sampler:
    return ExactSampler(None, params)


def probability(verifier: Verifier, sampler: Sampler, plan: DrawPlan, draws: int) -> float:
    """χ² probability of three tokens sampled through the scheduler, the target's distribution being the reference's."""
    target, *tables = (TableModel(VOCABULARY, seed) for seed in (41, 42, 43))
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(target, TableDrafter(tables, plan), verifier, sampler, PROMPT, TOKENS, draws):
        counts[cell_of(tokens, VOCABULARY)] += 1
    distribution = joint_distribution(target, ReferenceSampler(None, sampler.params), PROMPT, TOKENS)
    return goodness_of_fit(counts, draws * distribution)


def test_the_exact_sampler_conforms() -> None:
    check_sampler(exact)


def test_verification_with_the_exact_sampler_is_lossless(scale: Callable[[int, int], int]) -> None:
    check_verifier(MultiStep(None), plans=TREES, draws=scale(20, 3000), make_sampler=exact)


def test_more_answers_of_one_chain_and_one_tree(scale: Callable[[int, int], int]) -> None:
    plain = [SamplingParams(temperature=1.0)] * scale(0, 1)
    for params in (*plain, SamplingParams(temperature=1.3, top_p=0.8), PENALISED):
        assert probability(ChainRejection(None), exact(params), DRAWN_CHAIN, scale(300, 20_000)) > SIGNIFICANCE / 6
        tree = TREE_PLANS["all kinds, two drafters"]
        assert probability(MultiStep(None), exact(params), tree, scale(300, 20_000)) > SIGNIFICANCE / 6


@pytest.mark.parametrize("scales", [(-10.0, 10.0), (-1e3, 1e3)])
def test_the_sigmoid_sampler_is_not_lossless(scales: tuple[float, float]) -> None:
    """By a test that ``exact`` passes with the same counts. It says so itself: relaxed."""
    sampler = SigmoidSampler(SigmoidConfig("auto", *scales), SamplingParams(temperature=1.0))
    assert sampler.guarantee == "relaxed"
    assert probability(ChainRejection(None), sampler, DRAWN_CHAIN, 1000) < SIGNIFICANCE


def test_as_many_answers_of_the_exact_sampler_are_lossless() -> None:
    assert probability(ChainRejection(None), exact(SamplingParams(temperature=1.0)), DRAWN_CHAIN, 1000) > SIGNIFICANCE


@pytest.mark.parametrize("verifier", [MultiStep(None), ChainRejection(None), BlockVerification(None)])
def test_the_repetition_penalty_by_enumeration(verifier: Verifier) -> None:
    """Every outcome of a cycle: the distribution of its tokens is that of plain sampling with the penalty, to 1e-6."""
    target, *tables = (TableModel(3, seed) for seed in (7, 8, 9))
    plans = [CHAINS["chain of all kinds"]]
    if isinstance(verifier, MultiStep):
        plans += [TREE_PLANS["one q_V drawn from in both ways"], TREE_PLANS["top-2 tree"]]
    expected = joint_distribution(target, ReferenceSampler(None, PENALISED), (2, 0), TOKENS)
    unpenalised = joint_distribution(target, ReferenceSampler(None, SamplingParams(temperature=0.8)), (2, 0), TOKENS)
    assert (expected - unpenalised).abs().max() > 0.01
    for plan in plans:
        assert deviation(target, partial(TableDrafter, tables, plan), verifier, PENALISED, (2, 0)) < 1e-6


def test_a_penalty_that_forgets_drafted_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proof with the prefix penalised alone, and not the path of the tree."""
    target, *tables = (TableModel(3, seed) for seed in (7, 8, 9))
    right = Sampler.penalise
    with monkeypatch.context() as patch:
        patch.setattr(
            Sampler, "penalise", lambda self, logits, prefix, paths: right(self, logits, prefix, [()] * len(paths))
        )
        make_drafter = partial(TableDrafter, tables, CHAINS["drawn chain"])
        emitted = cycle_distribution(target, make_drafter, MultiStep(None), PENALISED, (2, 0))
    distribution = completed_distribution(emitted, target, PENALISED, (2, 0), 4)
    assert (distribution - joint_distribution(target, ReferenceSampler(None, PENALISED), (2, 0), 4)).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_penalty_is_that_of_transformers(dtype: torch.dtype) -> None:
    logits_NV = 3 * torch.randn((3, 20), generator=torch.Generator().manual_seed(1)).to(dtype)
    prefix, paths = [4, 4, 9, 2], [[], [7], [7, 4, 19]]
    given_NV = ReferenceSampler(None, PENALISED).penalise(logits_NV.clone(), prefix, paths)
    processor = RepetitionPenaltyLogitsProcessor(PENALISED.repetition_penalty)
    for row, path in enumerate(paths):
        tokens, scores = torch.tensor([[*prefix, *path]]), logits_NV[row : row + 1].float()  # as generate() gives them
        assert torch.equal(given_NV[row : row + 1], processor(tokens, scores))


def test_tokens_beyond_the_vocabulary_are_passed_over() -> None:
    logits_NV = torch.ones((1, 3))
    assert ReferenceSampler(None, PENALISED).penalise(logits_NV, [1, 9], [[7]]).tolist() == [
        [1.0, pytest.approx(1 / 1.6), 1.0]
    ]


def test_the_kernels_of_the_sigmoid_give_the_tokens_of_torch(device: torch.device) -> None:
    pytest.importorskip("triton")
    from tests.samplers.random_cases import make_case

    for seed in range(8):
        case = make_case(seed, 1 << 12, largest=1025)
        answers = [
            case.answers(SigmoidSampler(SigmoidConfig(kernels, -50.0, 50.0), case.params))
            for kernels in ("torch", "triton")
        ]
        assert answers[0] == answers[1]
