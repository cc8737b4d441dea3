"""χ² of every lossless sampling verifier on random trees of depth ≤ 4, random p and q, corrected for their number.

Every case compares the joint distribution of the first two tokens, where a fault shows soonest, and that of all five.
Bonferroni: each comparison is held to SIGNIFICANCE / (their number), so that right verifiers fail here with a
probability of at most SIGNIFICANCE, all cases together.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Request, SamplingParams, Verifier
from spec_sdk.testing import (
    SIGNIFICANCE,
    DrawPlan,
    PlannedDraw,
    TableDrafter,
    TableModel,
    goodness_of_fit,
    joint_distribution,
    sample_tokens,
)
from spec_sdk.testing.statistics import cell_of
from spec_sdk.tree import DrawKind, TokenTree
from spec_sdk_drafters.merged import merge
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.wrong_rules import TargetInsteadOfResidual, leaving, ruled

VOCABULARY, TOKENS, PROMPT = 3, 5, (1, 2)
MIXED: tuple[DrawKind, ...] = ("chosen", "with_replacement", "without_replacement")
DRAWS: dict[str, tuple[DrawKind, ...]] = {
    "with replacement": ("with_replacement",),
    "without replacement": ("without_replacement",),
    "chosen": ("chosen",),
    "mixed": MIXED,
    "merged": MIXED,
}
"""What children may be. ``merged``: three drafters' trees made one, so that some children are drawn by several."""
TREES = (MultiStep(None), NaiveTree(None))
CHAINS = (ChainRejection(None), BlockVerification(None))
SEEDS, COMPARED = (3, 0, 1, 2), (2, TOKENS)
CASES = [
    *((verifier, draws) for verifier in TREES for draws in DRAWS),
    *((verifier, draws) for verifier in CHAINS for draws in DRAWS if draws != "merged"),
]
THRESHOLD = SIGNIFICANCE / (len(CASES) * len(SEEDS) * len(COMPARED))


class Merged(Drafter):
    """The trees of several drafters, merged as ``drafter=merged`` does it."""

    name = "merged tables"

    def __init__(self, members: list[TableDrafter]) -> None:
        self.members = members

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return merge([member.propose_one(request, budget) for member in self.members])


def random_plan(rng: random.Random, kinds: tuple[DrawKind, ...], widest: int) -> DrawPlan:
    """2 … 4 levels; up to ``widest`` draws per node, three of them on one level only so that the tree stays small."""
    levels = [rng.randint(1, min(2, widest)) for _ in range(rng.randint(2, 4))]
    if widest > 2:
        levels[rng.randrange(len(levels))] = rng.choice((2, 3))
    return [[PlannedDraw(rng.choice(kinds), rng.randrange(2)) for _ in range(width)] for width in levels]


def probability_of_sample(verifier: Verifier, draws: str, seed: int, answers: int) -> float:
    rng = random.Random(f"{draws} {seed}")
    target, *drafts = (TableModel(VOCABULARY, 1000 + 10 * seed + i, spread=2.0) for i in range(3))
    members = 3 if draws == "merged" else 1
    widest = 1 if verifier.chains_only or draws == "merged" else 3
    plans = [random_plan(rng, DRAWS[draws], widest) for _ in range(members)]
    sampler = ReferenceSampler(None, SamplingParams(temperature=1.0))

    def make_drafter() -> Drafter:
        tables = [TableDrafter(drafts, plan) for plan in plans]
        return Merged(tables) if members > 1 else tables[0]

    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(target, make_drafter(), verifier, sampler, PROMPT, TOKENS, answers, seed):
        counts[cell_of(tokens, VOCABULARY)] += 1
    expected = answers * joint_distribution(target, sampler, PROMPT, TOKENS)
    return min(
        goodness_of_fit(*(cells.view(VOCABULARY**n, -1).sum(1) for cells in (counts, expected))) for n in COMPARED
    )


@pytest.mark.parametrize(
    ("verifier", "draws"), CASES, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_random_trees(verifier: Verifier, draws: str, scale: Callable[[int, int], int]) -> None:
    for seed in SEEDS[: scale(1, 4)]:
        assert probability_of_sample(verifier, draws, seed, scale(250, 2000)) > THRESHOLD, f"seed {seed}"


@pytest.mark.parametrize(
    "draws",
    [
        pytest.param(draws, marks=[pytest.mark.full] * (draws not in ("without replacement", "mixed")))
        for draws in DRAWS
    ],
)
def test_the_same_trees_reject_a_wrong_rule(draws: str, scale: Callable[[int, int], int]) -> None:
    """So the test can fail, at its smallest size."""
    assert probability_of_sample(ruled(leaving(TargetInsteadOfResidual)), draws, SEEDS[0], scale(250, 2000)) < THRESHOLD
