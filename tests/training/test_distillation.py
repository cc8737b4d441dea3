"""The loss against its definition, and its derivatives in chunks against those of all at once.

Legend: A positions, K labels, M model dim, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spec_sdk.training import distillation
from spec_sdk.training.distillation import backward_in_chunks, divergence


def labels(p_AV: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = p_AV.topk(top, dim=-1)
    return kept.indices, kept.values.log()


def test_with_a_label_for_every_token_it_is_the_divergence_itself() -> None:
    torch.manual_seed(0)
    logit_AV, p_AV = torch.randn(7, 20, dtype=torch.float64), torch.randn(7, 20, dtype=torch.float64).softmax(-1)
    expected_A = F.kl_div(logit_AV.log_softmax(-1), p_AV, reduction="none").sum(-1)
    # no rest: it counts as the least probability on both sides
    torch.testing.assert_close(divergence(logit_AV, *labels(p_AV, 20)), expected_A, atol=1e-9, rtol=1e-9)


def test_tokens_without_a_label_count_as_one() -> None:
    torch.manual_seed(1)
    logit_AV, p_AV = torch.randn(5, 30, dtype=torch.float64), torch.randn(5, 30, dtype=torch.float64).softmax(-1)
    id_AK, logprob_AK = labels(p_AV, 6)
    q_AV = logit_AV.softmax(-1)
    p_AK, q_AK = logprob_AK.exp(), q_AV.gather(1, id_AK)
    p_A, q_A = 1 - p_AK.sum(-1), 1 - q_AK.sum(-1)
    expected_A = (p_AK * (p_AK / q_AK).log()).sum(-1) + p_A * (p_A / q_A).log()
    torch.testing.assert_close(divergence(logit_AV, id_AK, logprob_AK), expected_A)
    # never more than the whole divergence (data processing)
    whole_A = F.kl_div(logit_AV.log_softmax(-1), p_AV, reduction="none").sum(-1)
    assert (expected_A <= whole_A).all() and (expected_A > 0).all()


def test_it_is_zero_where_both_agree() -> None:
    torch.manual_seed(2)
    logit_AV = torch.randn(4, 25, dtype=torch.float64)
    assert divergence(logit_AV, *labels(logit_AV.softmax(-1), 5)).abs().max() < 1e-12


def test_labels_of_tokens_that_cannot_be_drafted_are_left_out() -> None:
    torch.manual_seed(4)
    logit_AV, p_AV = torch.randn(3, 10, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64).softmax(-1)
    id_AK, logprob_AK = labels(p_AV, 4)
    found_A = divergence(logit_AV, torch.where(id_AK == id_AK[:, 1:2], -1, id_AK), logprob_AK)
    kept = [0, 2, 3]
    p_AK, q_AK = logprob_AK.exp(), logit_AV.softmax(-1).gather(1, id_AK)
    rest_p_A, rest_q_A = 1 - p_AK.sum(-1), 1 - q_AK[:, kept].sum(-1)
    expected_A = (p_AK * (p_AK / q_AK).log())[:, kept].sum(-1) + rest_p_A * (rest_p_A / rest_q_A).log()
    torch.testing.assert_close(found_A, expected_A)


@pytest.mark.parametrize(("chunk", "missing"), [(2, False), (3, True), (100, False), (100, True)])
def test_derivatives_in_chunks(chunk: int, missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "CHUNK", chunk)
    torch.manual_seed(3)
    head_VM, weight_MM = torch.randn(40, 8), torch.randn(8, 8).requires_grad_()
    x_AM = torch.randn(7, 8)
    id_AK, logprob_AK = labels(torch.randn(7, 40).softmax(-1), 5)
    if missing:
        id_AK[::2, 1:3] = -1
    total = backward_in_chunks(x_AM @ weight_MM, lambda s_aM: s_aM @ head_VM.T, id_AK, logprob_AK, 0.25)
    found_MM, weight_MM.grad = weight_MM.grad, None
    whole = divergence(x_AM @ weight_MM @ head_VM.T, id_AK, logprob_AK).sum()
    (0.25 * whole).backward()
    torch.testing.assert_close(total, whole.detach(), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found_MM, weight_MM.grad, atol=1e-4, rtol=1e-4)


def test_a_position_s_weight_is_that_of_its_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "CHUNK", 3)
    torch.manual_seed(5)
    head_VM, state_AM = torch.randn(40, 8), torch.randn(7, 8).requires_grad_()
    id_AK, logprob_AK = labels(torch.randn(7, 40).softmax(-1), 5)
    weight_A = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.2, 0.0, 2.0])
    total = backward_in_chunks(state_AM, lambda s_aM: s_aM @ head_VM.T, id_AK, logprob_AK, 0.25, weight_A)
    found_AM, state_AM.grad = state_AM.grad, None
    whole = (weight_A * divergence(state_AM @ head_VM.T, id_AK, logprob_AK)).sum()
    (0.25 * whole).backward()
    torch.testing.assert_close(total, whole.detach(), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found_AM, state_AM.grad, atol=1e-4, rtol=1e-4)
