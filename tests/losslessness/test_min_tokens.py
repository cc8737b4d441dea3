"""Ends that may not come yet change the target's distribution; speculation keeps the changed one.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.ops.held_back_tokens import hold_back
from spec_sdk.testing import TableDrafter, TableModel, joint_distribution
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import deviation
from tests.losslessness.plans import CHAINS, TREES

PROMPT, TOKENS, END, MIN_TOKENS = (2, 0), 3, 1, 2
# with a penalty logits are changed, also by those of the kit's requests
SAMPLED = SamplingParams(temperature=0.8, repetition_penalty=1.2)


class HoldingBack(ReferenceSampler):
    """The reference where the first tokens of an answer are no end, as requests have them."""

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        state = request_for(PROMPT, reference_sampler(SamplingParams()), 0)
        state.tokens[:], state.stop_ids, state.min_tokens = prefix, frozenset({END}), MIN_TOKENS
        return state.view.process_logits(super().penalise(logits_NV, prefix, paths), paths)


@pytest.mark.parametrize("verifier", [MultiStep(None), ChainRejection(None), BlockVerification(None)])
def test_by_enumeration(verifier: Verifier) -> None:
    """Every outcome of a cycle: the distribution of its tokens is that of plain sampling with the same rule, to 1e-6.
    Its trees reach beyond the tokens that are held back.
    """
    target, *tables = (TableModel(3, seed) for seed in (7, 8, 9))
    plans = [CHAINS["chain of all kinds"]]
    if isinstance(verifier, MultiStep):
        plans += [TREES["one q_V drawn from in both ways"], TREES["top-2 tree"]]
    held = joint_distribution(target, HoldingBack(None, SAMPLED), PROMPT, TOKENS).reshape(3, 3, 3)
    assert held[END].sum() == held[:, END].sum() == 0 < held[:, :, END].sum()
    for plan in plans:
        assert deviation(target, partial(TableDrafter, tables, plan), verifier, SAMPLED, PROMPT, HoldingBack) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_are_held_back(dtype: torch.dtype) -> None:
    least = float("-inf")
    logits_NV = torch.arange(12, dtype=dtype).reshape(3, 4)
    hold_back(logits_NV, {3, 0, 900}, [0, 2])
    assert logits_NV.tolist() == [[least, 1, 2, least], [4, 5, 6, 7], [least, 9, 10, least]]


def test_where_nothing_else_is_left_they_stay() -> None:
    least = float("-inf")
    logits_NV = torch.tensor([[least, 1.0, least], [2.0, 1.0, least], [least, least, least]])
    hold_back(logits_NV, {1}, [0, 1, 2])
    assert logits_NV.tolist() == [[least, 1.0, least], [2.0, least, least], [least] * 3]
    # unusable logits stay so
    wrong_NV = torch.tensor([[float("nan"), 1.0]])
    hold_back(wrong_NV, {1}, [0])
    assert wrong_NV[0, 0].isnan()


def test_a_request_changes_logits_until_it_has_enough_tokens() -> None:
    state = request_for(PROMPT, reference_sampler(SamplingParams()), 0)
    state.stop_ids, state.min_tokens = frozenset({END}), 2
    for left in (2, 1, 0):
        assert state.view.changes_logits == (left > 0)
        row_NV = state.view.process_logits(torch.zeros((3, 3)), [[], [0], [0, 2]])
        assert row_NV[:, END].isneginf().tolist() == [left > 0, left > 1, False]
        state.tokens.append(0)
