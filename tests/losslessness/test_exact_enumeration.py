"""The joint distribution of what a cycle emits, enumerated exactly, is the target's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.testing.tables import DrawPlan, TableDrafter, TableModel
from spec_sdk.testing.undecided import Chooser, outcomes
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.enumeration import MakeSampler, deviation
from tests.losslessness.plans import CHAINS, SAMPLINGS, TREES, WIDE
from tests.support.example_plugin import example

VOCABULARY, PROMPT = 3, (2, 0)


def assert_lossless(
    verifier: Verifier,
    plan: DrawPlan,
    params: SamplingParams,
    seed: int,
    sampler: MakeSampler = ReferenceSampler,
) -> None:
    target, *tables = (TableModel(VOCABULARY, seed + i) for i in range(3))
    assert deviation(target, lambda: TableDrafter(tables, plan), verifier, params, PROMPT, sampler) < 1e-6


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", [*CHAINS, *TREES])
def test_multi_step(plan: str, sampling: str, scale: Callable[[int, int], int]) -> None:
    for seed in range(0, 10 * scale(1, 40), 10):
        assert_lossless(MultiStep(None), (CHAINS | TREES)[plan], SAMPLINGS[sampling], seed)


@pytest.mark.full
@pytest.mark.parametrize("sampling", ["temperature 1", "top-p"])
@pytest.mark.parametrize("plan", WIDE)
def test_multi_step_on_wide_trees(plan: str, sampling: str) -> None:
    assert_lossless(MultiStep(None), WIDE[plan], SAMPLINGS[sampling], seed=5)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", CHAINS)
def test_chain_rejection(plan: str, sampling: str, scale: Callable[[int, int], int]) -> None:
    for seed in range(0, 10 * scale(2, 40), 10):
        assert_lossless(ChainRejection(None), CHAINS[plan], SAMPLINGS[sampling], seed)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", CHAINS)
def test_block_verification(plan: str, sampling: str, scale: Callable[[int, int], int]) -> None:
    for seed in range(0, 10 * scale(2, 40), 10):
        assert_lossless(BlockVerification(None), CHAINS[plan], SAMPLINGS[sampling], seed)


@pytest.mark.parametrize("sampling", ["temperature 1", "top-p"])
@pytest.mark.parametrize("plan", CHAINS)
def test_block_verification_with_rows_that_lie_in_one_place(plan: str, sampling: str) -> None:
    """The exact sampler writes every row to the memory of the one before; a chain needs them all."""
    assert_lossless(BlockVerification(None), CHAINS[plan], SAMPLINGS[sampling], 0, ExactSampler)


@pytest.mark.parametrize("sampling", ["temperature 1", "top-p"])
@pytest.mark.parametrize("plan", ["top-2 tree", "repeated draws", "distinct draws"])
def test_naive_tree(plan: str, sampling: str, scale: Callable[[int, int], int]) -> None:
    for seed in range(0, 10 * scale(1, 40), 10):
        assert_lossless(NaiveTree(None), TREES[plan], SAMPLINGS[sampling], seed)


@pytest.mark.parametrize("plan", ["drawn chain", "top-2 tree"])
def test_a_rule_of_a_verifier_s_own(plan: str) -> None:
    assert_lossless(example("verifier").FirstDraws(None), (CHAINS | TREES)[plan], SAMPLINGS["temperature 1"], seed=0)


def test_an_unknown_rule_is_named() -> None:
    class Misnamed(MultiStep):
        rule = "multistep"

    target = TableModel(VOCABULARY, 0)
    with pytest.raises(ValueError, match="its rule .multistep. is unknown, did you mean .multi_step."):
        deviation(
            target,
            lambda: TableDrafter([target], TREES["top-2 tree"]),
            Misnamed(None),
            SAMPLINGS["temperature 1"],
            PROMPT,
        )


def test_a_perfect_draft_leaves_nothing_to_resample() -> None:
    """With q = p the residual has no mass; the rule must still be sound, and accept everything."""
    target, plan = TableModel(VOCABULARY, 3), TREES["repeated draws"]
    params = SamplingParams(temperature=1.0)
    assert deviation(target, lambda: TableDrafter([target], plan), MultiStep(None), params, PROMPT) < 1e-6


def test_enumeration_finds_every_outcome_once() -> None:
    """Of the enumeration itself: two choices, the second of which depends on the first."""

    def run(chooser: Chooser) -> tuple[int, int]:
        first = chooser.choose([0.2, 0.0, 0.8])
        return first, chooser.choose([0.5, 0.5] if first else [1.0, 0.0])

    found = sorted(outcomes(run))
    assert found == [((0, 0), 0.2), ((2, 0), 0.4), ((2, 1), 0.4)]
    assert torch.tensor([weight for _, weight in found]).sum() == pytest.approx(1)
