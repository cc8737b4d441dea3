"""Trees of several requests by the kernels at once: the verdicts that each gets alone, with one read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from spec_sdk.contracts import Request, SamplingParams, Verdict
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops import host_reads
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_verifiers.multi_step import MultiStep

pytest.importorskip("triton")
VOCABULARY = 96
COLD, HOT = SamplingParams(temperature=0.3), SamplingParams(temperature=4.0, top_k=60)
SAMPLINGS = (COLD, HOT, COLD)
Case = tuple[TokenTree, torch.Tensor, Request]


def case_of(number: int, kernels: str) -> Case:
    """A drawn token, one drawn twice without replacement, and a chosen one; logits of two dtypes."""
    rng = torch.Generator().manual_seed(number)
    sampler = ExactSampler(ExactConfig(kernels), SAMPLINGS[number % len(SAMPLINGS)])
    rows_NV = 2 * torch.randn((8, VOCABULARY), generator=rng)
    distributions = [sampler.distribution(rows_NV[5 + i].clone()) for i in range(2)]
    builder = TreeBuilder(3)
    child = builder.add(0, sampler.draw_from(distributions[0], rng), "with_replacement", distributions[0])
    for token in distributions[1].q_V.topk(2).indices.tolist():
        builder.add(child, token, "without_replacement", distributions[1], sequence=0)
    tree = builder.build().tree
    target_NV = rows_NV[: tree.size].to(torch.bfloat16 if number % 4 == 3 else torch.float32)
    return tree, target_NV, request_for([1, 3], sampler, seed=100 + number, slot=number).view


def outcome(verdict: Verdict | Exception) -> object:
    return verdict.tokens if isinstance(verdict, Verdict) else (type(verdict), str(verdict))


def verified(cases: Sequence[Case]) -> list[object]:
    trees, logits, requests = zip(*cases, strict=True)
    return [outcome(verdict) for verdict in MultiStep(None).verify(trees, logits, requests)]


def test_verdicts_are_those_of_each_alone_and_of_the_reference() -> None:
    before = host_reads.total()
    together = verified([case_of(number, "triton") for number in range(12)])
    assert host_reads.total() == before + 1
    assert together == [verified([case_of(number, "triton")])[0] for number in range(12)]
    assert together == [verified([case_of(number, "torch")])[0] for number in range(12)]
    assert len({str(tokens) for tokens in together}) > 4


def test_a_request_with_a_fault_is_named_and_the_others_are_decided() -> None:
    cases, sound = ([case_of(number, "triton") for number in (0, 2, 3, 6, 8)] for _ in range(2))
    # requests 0, 2, 6, 8 share a launch; of the third and the fourth of all, a target's and a draft's row
    cases[3][1][0] = float("nan")
    source = cases[4][0].draws_N[0][0].source
    assert source is not None and not isinstance(source, torch.Tensor)
    source.logits_V[:] = float("nan")
    found, expected = verified(cases), verified(sound)
    assert found[:3] == expected[:3]
    assert found[3] == (UnusableLogits, str(UnusableLogits(0)))
    assert found[4] == (UnusableLogits, str(UnusableLogits(0, "draft, ")))


def test_a_draw_that_could_not_have_been_is_named_by_its_own_node() -> None:
    cases = [case_of(number, "triton") for number in (0, 2, 6)]
    tree = cases[1][0]
    source = tree.draws_N[0][0].source
    assert source is not None and not isinstance(source, torch.Tensor)
    source.logits_V[tree.token_N[1]] = float("-inf")
    found = verified(cases)
    assert "tree node 1: drafter '' says that it drew token" in str(found[1])
    assert [found[0], found[2]] == [verified([case_of(number, "triton")])[0] for number in (0, 6)]


def test_trees_that_cannot_be_gathered_do_not_keep_others_from_it() -> None:
    cases = [case_of(number, "triton") for number in (0, 2, 6)]
    tree = cases[1][0]
    source = tree.draws_N[0][0].source
    assert source is not None and not isinstance(source, torch.Tensor)
    source.logits = source.logits_V[:-1]
    found = verified(cases)
    assert "is not one of the target's" in str(found[1])
    assert [found[0], found[2]] == [verified([case_of(number, "triton")])[0] for number in (0, 6)]
