"""The proofs can fail: enumeration and χ² both reject every deliberately wrong rule, where the right one passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from spec_sdk.contracts import Request, SamplingParams, Verdict, Verifier
from spec_sdk.ops import Rule
from spec_sdk.testing import TableDrafter, TableModel, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.statistics import cell_of
from spec_sdk.testing.tables import DrawPlan, PlannedDraw
from spec_sdk.testing.verifiers import verifier_checks
from spec_sdk.tree import TokenTree
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import deviation
from tests.losslessness.plans import CHAINS, TREES
from tests.losslessness.wrong_rules import (
    ModelQForChosen,
    TargetInsteadOfResidual,
    TooSureInTheDeep,
    UnnormalisedResidual,
    UnnormalisedRest,
    block_accepted_by_weight,
    block_rest_of_token,
    block_stops_at_a_rejection,
    block_target_for_residual,
    bonus_from_parent_row,
    children_best_first,
    draft_distribution_not_updated,
    duplicates_forgotten,
    leaving,
    ruled,
)

VOCABULARY, TOKENS, PROMPT = 3, 3, (1, 2)
PARAMS = SamplingParams(temperature=1.0)
FEW = 300


@functools.cache
def tables_of(seed: int) -> tuple[TableModel, ...]:
    """The target, and two drafts that are far from it."""
    return tuple(TableModel(VOCABULARY, seed + i, spread=2.5) for i in range(3))


@dataclass(frozen=True)
class Wrong:
    """A wrong rule, and the kind of tree and the tables on which it shows."""

    plan: DrawPlan
    verifier: Callable[[], Verifier] = lambda: MultiStep(None)
    seed: int = 120
    draws: int = FEW
    """Answers that χ² needs to tell it from the right one, with room."""


def by(rule: Rule, base: type[Verifier] = MultiStep) -> Callable[[], Verifier]:
    return functools.partial(ruled, rule, base)


DRAWN = CHAINS["drawn chain"]
WRONG = {
    "min(1, p/q) with the model's q for a chosen child": Wrong(
        CHAINS["top-1 chain"], lambda: ModelQForChosen(tables_of(120)[1])
    ),
    "the same, top-k tree": Wrong(TREES["top-2 tree"], lambda: ModelQForChosen(tables_of(120)[1])),
    "residual not renormalised": Wrong(TREES["repeated draws"], by(leaving(UnnormalisedResidual)), draws=1000),
    "p without a chosen token not renormalised": Wrong(TREES["top-2 tree"], by(leaving(UnnormalisedRest)), seed=180),
    "p instead of the residual": Wrong(DRAWN, by(leaving(TargetInsteadOfResidual)), draws=600),
    "the same, chain rejection": Wrong(DRAWN, by(leaving(TargetInsteadOfResidual), ChainRejection), draws=600),
    "the same, block verification": Wrong(DRAWN, by(block_target_for_residual, BlockVerification), draws=600),
    "residual of the token, not of the block": Wrong(DRAWN, by(block_rest_of_token), seed=581, draws=3000),
    "every block accepted with its weight": Wrong(DRAWN, by(block_accepted_by_weight)),
    "blocks end at the first that is rejected": Wrong(DRAWN, by(block_stops_at_a_rejection)),
    "bonus token from the wrong row": Wrong(CHAINS["two drawn tokens"], by(bonus_from_parent_row), seed=628),
    "q not updated in draws without replacement": Wrong(TREES["distinct draws"], by(draft_distribution_not_updated)),
    "q without a rejected draw not renormalised": Wrong(TREES["distinct draws"], by(leaving(UnnormalisedRest))),
    "repeated draws tried once": Wrong(TREES["repeated draws"], by(duplicates_forgotten), seed=203, draws=600),
    "draws tried in another order": Wrong(TREES["repeated draws"], by(children_best_first), seed=202),
}
RIGHT = {
    f"right: {name}": Wrong(plan)
    for name, plan in (CHAINS | TREES).items()
    if name in {"top-1 chain", "top-2 tree", "drawn chain", "two drawn tokens", "distinct draws", "repeated draws"}
}
RIGHT |= {
    f"right: drawn chain, {make.name}": Wrong(CHAINS["drawn chain"], functools.partial(make, None))
    for make in (ChainRejection, BlockVerification)
}


def enumerated_error(rule: Wrong) -> float:
    """The largest deviation of a cycle's enumerated joint distribution from the target's."""
    target, *drafts = tables_of(rule.seed)
    return deviation(target, lambda: TableDrafter(drafts, rule.plan), rule.verifier(), PARAMS, PROMPT)


def sampled_probability(rule: Wrong, draws: int) -> float:
    """The χ² probability of ``draws`` answers through the scheduler."""
    target, *drafts = tables_of(rule.seed)
    sampler = ReferenceSampler(None, PARAMS)
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(
        target, TableDrafter(drafts, rule.plan), rule.verifier(), sampler, PROMPT, TOKENS, draws
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    return goodness_of_fit(counts, draws * joint_distribution(target, ReferenceSampler(None, PARAMS), PROMPT, TOKENS))


@pytest.mark.parametrize("name", WRONG)
def test_enumeration_rejects_the_wrong_rule(name: str) -> None:
    assert enumerated_error(WRONG[name]) > 1e-4


# those that show in few answers: what χ² finds, the enumeration of all of them finds too
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (rule.draws > FEW)) for name, rule in WRONG.items()]
)
def test_chi_square_rejects_the_wrong_rule(name: str, scale: Callable[[int, int], int]) -> None:
    assert sampled_probability(WRONG[name], scale(WRONG[name].draws, 20_000)) < 1e-12


@pytest.mark.parametrize("name", RIGHT)
def test_both_accept_the_right_rule(name: str, scale: Callable[[int, int], int]) -> None:
    assert enumerated_error(RIGHT[name]) < 1e-6
    assert sampled_probability(RIGHT[name], scale(300, 20_000)) > 1e-4


@pytest.mark.parametrize("name", WRONG)
def test_the_conformance_check_rejects_the_wrong_verifier(name: str) -> None:
    """On its own tables, whatever they are: every outcome is tried."""
    *_, outcomes, _ = verifier_checks(WRONG[name].verifier())
    with pytest.raises(AssertionError, match=r"is off the target's by .* \(enumerated\)"):
        outcomes.run()


def test_the_conformance_check_looks_deep_into_a_chain() -> None:
    *_, outcomes, _ = verifier_checks(ruled(leaving(TooSureInTheDeep)))
    chain = "draws with replacement(, then with replacement){5}"
    with pytest.raises(AssertionError, match=f"{chain}: .* is off the target's by"):
        outcomes.run()


class OwnNumbers(MultiStep):
    """Follows a wrong rule by numbers that it takes from the generator itself."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(None)
        self.wrong = rule

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        def uniforms(count: int) -> list[float]:
            numbers: list[float] = torch.rand(count, generator=request.rng, dtype=torch.float64).tolist()
            return numbers

        path, token = self.wrong(tree, request.sampler.rows(tree, logits_NV), uniforms)
        return Verdict(path, token, tree)


@pytest.mark.parametrize(
    ("rule", "plan"),
    [
        (leaving(TargetInsteadOfResidual), DRAWN),
        (bonus_from_parent_row, CHAINS["one drawn token"]),
        (draft_distribution_not_updated, [[PlannedDraw("without_replacement")] * 2] * 2),
    ],
    ids=["p instead of the residual", "bonus token from the wrong row", "q not updated"],
)
def test_answers_alone_show_gross_faults_at_the_default_counts(rule: Rule, plan: DrawPlan) -> None:
    """Of a verifier whose random numbers cannot be followed."""
    *_, outcomes, answers = verifier_checks(OwnNumbers(rule), plans=[plan])
    assert "cannot be enumerated" in str(outcomes.run())
    with pytest.raises(AssertionError, match="joint distribution of 3 successive tokens is not the target's"):
        answers.run()
