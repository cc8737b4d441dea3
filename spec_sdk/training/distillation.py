"""The distance of a draft model's distribution from the target's, of which the most probable tokens are known.

Legend: A labelled positions, K labels of a position, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

LEAST_REST = 1e-5
"""Probability, at least, that is taken for the tokens without a label: its logarithm is in the loss."""
CHUNK = 256
"""Positions whose logits are in memory at once."""


def divergence(logit_AV: torch.Tensor, top_id_AK: torch.Tensor, top_logprob_AK: torch.Tensor) -> torch.Tensor:
    """Kullback–Leibler divergence [A] of the draft model's distribution from the target's, in nats.

    All tokens without a label count as one: Σ p log(p / q) over the K labels, and their rest.
    """
    logprob_AK = logit_AV.gather(1, top_id_AK) - logit_AV.logsumexp(-1, keepdim=True)
    p_AK = top_logprob_AK.exp()
    rest_p_A = (1 - p_AK.sum(-1)).clamp(min=LEAST_REST)
    rest_q_A = (1 - logprob_AK.exp().sum(-1)).clamp(min=LEAST_REST)
    labelled_A = (p_AK * (top_logprob_AK - logprob_AK)).sum(-1)
    return labelled_A + rest_p_A * (rest_p_A / rest_q_A).log()


def backward_in_chunks(
    state_AM: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    top_id_AK: torch.Tensor,
    top_logprob_AK: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Add the derivatives of ``scale`` · Σ divergence to what ``state_AM`` was made of; return the sum, unscaled.

    ``logits_of``: states [a, M] → logits [a, V], without trained weights of its own. Only :data:`CHUNK` positions have
    logits in memory at once.
    """
    gradient_AM = torch.zeros_like(state_AM)
    total = torch.zeros((), device=state_AM.device)
    for first in range(0, len(state_AM), CHUNK):
        part = slice(first, first + CHUNK)
        part_aM = state_AM[part].detach().requires_grad_()
        loss = divergence(logits_of(part_aM).float(), top_id_AK[part], top_logprob_AK[part]).sum()
        (gradient_AM[part],) = torch.autograd.grad(loss * scale, part_aM)
        total += loss.detach()
    state_AM.backward(gradient_AM)  # type: ignore[no-untyped-call]
    return total
