"""The distance of a draft model's distribution from the target's, of which the most probable tokens are known.

Legend: A labelled positions, K labels of a position, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

LEAST_REST = 1e-5
"""Probability, at least, that is taken for the tokens without a label: its logarithm is in the loss."""
CHUNK = 512
"""Positions whose logits are in memory at once."""


def divergence(logit_AV: torch.Tensor, top_id_AK: torch.Tensor, top_logprob_AK: torch.Tensor) -> torch.Tensor:
    """Kullback–Leibler divergence [A] of the draft model's distribution from the target's, in nats.

    All tokens without a label count as one: Σ p log(p / q) over the K labels, and their rest. ``top_id_AK`` counts
    the V tokens of the draft model; labels of tokens that it does not have are -1, and left out of the sum.
    """
    known_AK, id_AK = top_id_AK >= 0, top_id_AK.clamp(min=0)
    logprob_AK = logit_AV.gather(1, id_AK) - logit_AV.logsumexp(-1, keepdim=True)
    p_AK = top_logprob_AK.exp()
    rest_p_A = (1 - p_AK.sum(-1)).clamp(min=LEAST_REST)
    rest_q_A = (1 - (known_AK * logprob_AK.exp()).sum(-1)).clamp(min=LEAST_REST)
    labelled_A = (known_AK * p_AK * (top_logprob_AK - logprob_AK)).sum(-1)
    return labelled_A + rest_p_A * (rest_p_A / rest_q_A).log()


def backward_in_chunks(
    state_AM: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    top_id_AK: torch.Tensor,
    top_logprob_AK: torch.Tensor,
    scale: float,
    weight_A: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add the derivatives of ``scale`` · Σ weight · divergence to what ``state_AM`` was made of; return the sum,
    unscaled. ``weight_A``: by default 1 each.

    ``logits_of``: states [a, M] → logits [a, V], without trained weights of its own. Only :data:`CHUNK` positions have
    logits in memory at once.
    """
    gradient_AM = torch.zeros_like(state_AM)
    total = torch.zeros((), device=state_AM.device)
    for first in range(0, len(state_AM), CHUNK):
        part = slice(first, first + CHUNK)
        part_aM = state_AM[part].detach().requires_grad_()
        logit_aV = logits_of(part_aM)
        weight_a = torch.ones(len(part_aM), device=part_aM.device) if weight_A is None else weight_A[part]
        loss_a, gradient_aV = _with_derivatives(
            logit_aV.detach(), top_id_AK[part], top_logprob_AK[part], weight_a * scale
        )
        (gradient_AM[part],) = torch.autograd.grad(logit_aV, part_aM, gradient_aV.to(logit_aV.dtype))
        total += (loss_a * weight_a).sum()
    state_AM.backward(gradient_AM)  # type: ignore[no-untyped-call]
    return total


def _with_derivatives(
    logit_AV: torch.Tensor, top_id_AK: torch.Tensor, top_logprob_AK: torch.Tensor, scale_A: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`divergence`, and the derivatives by the logits of ``scale_A`` times that, float32: a third of the passes
    over V that autograd makes.

    With P = Σ p and Q = Σ q over the labels, and r the rests' ratio p / q, they are q (P - r Q), and of tokens with a
    label r q - p more.
    """
    known_AK, id_AK = top_id_AK >= 0, top_id_AK.clamp(min=0)
    q_AV = logit_AV.softmax(-1, dtype=torch.float32)
    rest_p_A = (1 - top_logprob_AK.exp().sum(-1)).clamp(min=LEAST_REST)
    q_AK, p_AK = known_AK * q_AV.gather(1, id_AK), known_AK * top_logprob_AK.exp()
    q_A, p_A = q_AK.sum(-1), p_AK.sum(-1)
    rest_q_A = (1 - q_A).clamp(min=LEAST_REST)
    labelled_A = (p_AK * (top_logprob_AK - q_AK.clamp(min=torch.finfo(torch.float32).tiny).log())).sum(-1)
    loss_A = labelled_A + rest_p_A * (rest_p_A / rest_q_A).log()
    # a rest at its least has no derivative
    ratio_A = torch.where(1 - q_A > LEAST_REST, rest_p_A / rest_q_A, 0.0)
    gradient_AV = q_AV.mul_(((p_A - ratio_A * q_A) * scale_A)[:, None])
    gradient_AV.scatter_add_(1, id_AK, (ratio_A[:, None] * q_AK - p_AK) * scale_A[:, None])
    return loss_A, gradient_AV
