"""Logit bias, presence and frequency penalty change the target's distribution; speculation keeps the changed one.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.ops.logit_offsets import LogitOffsets
from spec_sdk.testing import TableDrafter, TableModel, joint_distribution
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import deviation
from tests.losslessness.plans import CHAINS
from tests.losslessness.plans import TREES as TREE_PLANS

PROMPT, TOKENS = (2, 0), 3
SAMPLED = SamplingParams(temperature=0.8, repetition_penalty=1.2)
OFFSETS = LogitOffsets({0: 0.7, 2: -0.4}, presence=0.6, frequency=0.9)


class Offset(ReferenceSampler):
    """The reference with offsets behind its penalty, as requests have them."""

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        logits_NV = super().penalise(logits_NV, prefix, paths)
        return OFFSETS.apply(logits_NV, list(prefix)[len(PROMPT) :], paths)


@pytest.mark.parametrize("verifier", [MultiStep(None), ChainRejection(None), BlockVerification(None)])
def test_offsets_by_enumeration(verifier: Verifier) -> None:
    """Every outcome of a cycle: the distribution of its tokens is that of plain sampling with the offsets, to 1e-6."""
    target, *tables = (TableModel(3, seed) for seed in (7, 8, 9))
    plans = [CHAINS["chain of all kinds"]]
    if isinstance(verifier, MultiStep):
        plans += [TREE_PLANS["one q_V drawn from in both ways"], TREE_PLANS["top-2 tree"]]
    changed = joint_distribution(target, Offset(None, SAMPLED), PROMPT, TOKENS)
    plain = joint_distribution(target, ReferenceSampler(None, SAMPLED), PROMPT, TOKENS)
    assert (changed - plain).abs().max() > 0.01
    for plan in plans:
        assert deviation(target, partial(TableDrafter, tables, plan), verifier, SAMPLED, PROMPT, Offset) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_they_are_those_of_openai(dtype: torch.dtype) -> None:
    """μ[j] + bias[j] − c[j]·frequency − [c[j] > 0]·presence, c counting the answer and the path."""
    logits_NV = torch.randn((4, 9), generator=torch.Generator().manual_seed(1)).to(dtype)
    answer, paths = [4, 4, 8, 2], [[], [7], [7, 4, 7], [1, 4]]
    bias = {3: 1.25, 4: -2.5, 8: 100.0}
    given_NV = LogitOffsets(bias, presence=0.75, frequency=0.5).apply(logits_NV.clone(), answer, paths)
    assert given_NV.dtype == torch.float32
    for row, path in enumerate(paths):
        for token in range(9):
            count = [*answer, *path].count(token)
            expected = float(logits_NV[row, token]) + bias.get(token, 0.0) - 0.5 * count - 0.75 * (count > 0)
            assert float(given_NV[row, token]) == pytest.approx(expected, abs=1e-5), (row, token)


def test_tokens_beyond_the_vocabulary_are_passed_over() -> None:
    offsets = LogitOffsets({1: 2.0, 7: 1.0}, presence=1.0, frequency=1.0)
    assert offsets.apply(torch.zeros((1, 3)), [9, 0], [[8, 0]]).tolist() == [[-3.0, 2.0, 0.0]]
