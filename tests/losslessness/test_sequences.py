"""Draws that belong together are judged together, in whatever form a drafter gives their distribution."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, NoOptions, Request, SamplingParams
from spec_sdk.ops import without
from spec_sdk.testing import TableModel, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import DraftDistribution, TokenTree, TreeBuilder
from spec_sdk_drafters.merged import merge
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import MakeSampler, completed_distribution, cycle_distribution

VOCABULARY, TOKENS, PROMPT = 4, 2, (2, 0)
SAMPLED = SamplingParams(temperature=1.0)
FORMS = [("lazy", "q_V", "lazy"), ("q_V", "lazy", "q_V"), ("view", "view", "view"), ("lazy", "view", "q_V")]


class InForms(Drafter):
    """Draws as many tokens without replacement as there are ``forms``, and gives the i-th its q in the i-th form.

    ``trees`` such trees, from one distribution, are merged.
    """

    name = "in forms"

    def __init__(self, table: TableModel, forms: tuple[str, ...], trees: int = 1) -> None:
        self.config = NoOptions()
        self.table, self.forms, self.trees = table, forms, trees

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        sampler = request.sampler
        distribution = sampler.distribution(self.table.logits(request.tokens))
        given: dict[str, torch.Tensor | DraftDistribution] = {"lazy": distribution, "q_V": distribution.q_V}
        trees = []
        for _ in range(self.trees):
            builder, left_V = TreeBuilder(request.pending_token), distribution.q_V
            for form in self.forms:
                token = sampler.draw(left_V, request.rng)
                source = distribution.q_V[:] if form == "view" else given[form]
                builder.add(0, token, "without_replacement", source, self.name)
                left_V = without(left_V, token)
            trees.append(builder.build().tree)
        return merge(trees)


def largest_error(forms: tuple[str, ...], trees: int, sampler: MakeSampler) -> float:
    """How far the joint distribution of two tokens is from the target's."""
    target, table = TableModel(VOCABULARY, 5), TableModel(VOCABULARY, 8)
    emitted = cycle_distribution(
        target, lambda: InForms(table, forms, trees), MultiStep(None), SAMPLED, PROMPT, sampler
    )
    assert sum(emitted.values()) == pytest.approx(1, abs=1e-6)
    distribution = completed_distribution(emitted, target, SAMPLED, PROMPT, TOKENS)
    return float(
        (distribution - joint_distribution(target, ReferenceSampler(None, SAMPLED), PROMPT, TOKENS)).abs().max()
    )


@pytest.mark.parametrize("sampler", [ReferenceSampler, ExactSampler], ids=["multi_step", "exact"])
@pytest.mark.parametrize("forms", FORMS, ids=" ".join)
def test_one_sequence_in_several_forms(forms: tuple[str, ...], sampler: MakeSampler) -> None:
    assert largest_error(forms, 1, sampler) < 1e-6


@pytest.mark.parametrize("sampler", [ReferenceSampler, ExactSampler], ids=["multi_step", "exact"])
def test_two_sequences_from_one_distribution(sampler: MakeSampler) -> None:
    """As two drafters draw that share a draft model: neither removes what the other drew."""
    assert largest_error(("lazy", "lazy"), 2, sampler) < 1e-6


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize(("forms", "trees"), [*((forms, 1) for forms in FORMS), (("lazy", "q_V"), 2)], ids=str)
def test_the_kernels_see_the_same_sequences(forms: tuple[str, ...], trees: int, kernels: str) -> None:
    """Verdicts of the kernels and of the reference, for the same random numbers. The target likes best what the draft
    likes least, so that many draws are rejected.
    """
    if kernels == "triton":
        pytest.importorskip("triton")
    table, params = TableModel(VOCABULARY, 8), SAMPLED
    answers = []
    for sampler in (ExactSampler(ExactConfig(kernels), params), ReferenceSampler(None, params)):
        tokens = []
        for seed in range(12 if kernels == "triton" else 60):
            request = request_for(PROMPT, sampler, seed, 9).view
            tree = InForms(table, forms, trees).propose_one(request, Budget(1))
            logits_NV = -table.logits(PROMPT).repeat(tree.size, 1)
            tokens.append(MultiStep(None).verify_one(tree, logits_NV, request).tokens)
        answers.append(tokens)
    assert answers[0] == answers[1]
