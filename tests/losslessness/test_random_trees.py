"""χ² of every lossless sampling verifier on random trees of depth ≤ 4, random p and q, corrected for their number."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.testing import (
    SIGNIFICANCE,
    PlannedDraw,
    TableDrafter,
    TableModel,
    goodness_of_fit,
    joint_law,
    sample_tokens,
)
from spec_sdk.testing.statistics import cell_of
from spec_sdk.tree import DrawKind
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree

VOCABULARY, TOKENS, PROMPT, SEEDS = 3, 5, (1, 2), range(3)
KINDS: tuple[DrawKind, ...] = ("chosen", "with_replacement", "without_replacement")
VERIFIERS = (MultiStep(None), NaiveTree(None), ChainRejection(None), BlockVerification(None))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
def test_random_trees(verifier: Verifier, seed: int, scale: Callable[[int, int], int]) -> None:
    rng = random.Random(seed)
    widest = 1 if verifier.chains_only else 2
    plan = [
        [PlannedDraw(rng.choice(KINDS), rng.randrange(2)) for _ in range(rng.randint(1, widest))]
        for _ in range(rng.randint(2, 4))
    ]
    target, *drafts = (TableModel(VOCABULARY, 1000 + 10 * seed + i, spread=2.0) for i in range(3))
    sampler, draws = ReferenceSampler(None, SamplingParams(temperature=1.0)), scale(300, 10_000)
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(target, lambda: TableDrafter(drafts, plan), verifier, sampler, PROMPT, TOKENS, draws):
        counts[cell_of(tokens, VOCABULARY)] += 1
    probability = goodness_of_fit(counts, draws * joint_law(target, sampler, PROMPT, TOKENS))
    assert probability > SIGNIFICANCE / (len(VERIFIERS) * len(SEEDS))
