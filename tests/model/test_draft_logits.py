"""Logits over the tokens that can be drafted (legend: K nodes, R such tokens, V vocabulary)."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import DraftLogits, SamplingParams
from spec_sdk.contracts.constraint import OnlyTokens
from spec_sdk.ops import host_reads
from spec_sdk.testing.defaults import reference_sampler, request_for

TOKENS = [7, 2, 40, 11]
VOCABULARY = 50


def some(rows: int = 3) -> DraftLogits:
    logits_KR = torch.randn(rows, len(TOKENS), generator=torch.Generator().manual_seed(1))
    return DraftLogits(logits_KR, torch.tensor(TOKENS), VOCABULARY)


def test_whole_rows_have_nothing_for_other_tokens() -> None:
    logits = some()
    assert logits.full_KV.shape == (3, VOCABULARY) and len(logits) == 3
    assert torch.equal(logits.full_KV[:, TOKENS], logits.logits_KR)
    others = sorted({*range(VOCABULARY)} - {*TOKENS})
    assert (logits.full_KV[:, others] == -torch.inf).all()
    assert logits.full_KV is logits.full_KV


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_most_probable_tokens_are_those_of_whole_rows(count: int) -> None:
    logits, before = some(), host_reads.total()
    logprob_KW, token_KW = logits.top(count)
    assert host_reads.total() == before + 1
    expected_KW, expected_tokens_KW = logits.full_KV.log_softmax(-1).topk(min(count, len(TOKENS)))
    torch.testing.assert_close(logprob_KW, expected_KW)
    assert torch.equal(token_KW, expected_tokens_KW)


def test_a_target_of_more_or_fewer_rows() -> None:
    logits, every = some(), DraftLogits.over_all(torch.randn(2, 20))
    assert logits.within(VOCABULARY) is logits
    assert logits.within(60).full_KV.shape == (3, 60) and logits.within(60).logits_KR is logits.logits_KR
    fewer = logits.within(12)
    assert torch.equal(fewer.full_KV, logits.full_KV[:, :12]) and 40 not in fewer.top(4)[1][:, :3]
    assert torch.equal(every.within(15).full_KV, every.full_KV[:, :15])
    wider = every.within(25)
    assert torch.equal(wider.full_KV[:, :20], every.full_KV) and (wider.full_KV[:, 20:] == -torch.inf).all()


def test_a_request_that_changes_logits_gets_whole_rows_of_them() -> None:
    state = request_for([2, 2], reference_sampler(SamplingParams(repetition_penalty=2.0)), 0)
    expected_KV = state.view.process_logits(some().full_KV, [(), (11,), (40, 7)])
    penalised = state.view.process_draft(some(), [(), (11,), (40, 7)])
    assert penalised.token_R is None and torch.equal(penalised.full_KV, expected_KV)
    assert not torch.equal(penalised.full_KV[:, 2], some().full_KV[:, 2])
    plain = request_for([2, 2], reference_sampler(SamplingParams()), 0)
    kept = plain.view.process_draft(some(), [()] * 3)
    assert torch.equal(kept.logits_KR, some().logits_KR) and kept.ops is plain.ops
    plain.constraint = OnlyTokens([11, 3])
    assert plain.view.process_draft(some(), [()] * 3).top(1)[1].flatten().tolist() == [11] * 3


def test_a_constraint_that_leaves_nothing_the_model_can_draft() -> None:
    """Then what it allows is drafted all the same, each token as probable as the others."""
    state = request_for([2, 2], reference_sampler(SamplingParams()), 0)
    state.constraint = OnlyTokens([5, 6])
    assert some().full_KV[:, [5, 6]].isneginf().all()
    processed = state.view.process_draft(some(), [()] * 3)
    assert processed.full_KV.softmax(-1)[:, [5, 6]].tolist() == [[0.5, 0.5]] * 3
