"""The arithmetic of rejection sampling on single distributions: accept, what a rejection leaves, take a token away.

Rows are float32 and may be large: they are worked on in pieces (:mod:`spec_sdk.ops.pieces`).

Legend: V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.pieces import exceeding, pieces, total


def accepts(p: float, q: float, uniform: float) -> bool:
    """Accept a token of target probability p that was drawn with probability q: with probability min(1, p/q).

    A chosen token was drawn with q = 1.
    """
    return uniform * q < p


def residual(p_V: torch.Tensor, q_V: torch.Tensor, out_V: torch.Tensor | None = None) -> torch.Tensor:
    """The residual distribution norm(max(p - q, 0)) [V], from which to go on after a drawn token was rejected.

    In ``out_V`` if it is given, which is none of the others; ``p_V`` itself if nothing of it exceeds ``q_V``. A draw is
    rejected with probability sum(max(q - p, 0)), which equals the residual's mass. Where that is zero up to rounding,
    so is the probability of getting here, and whatever is returned moves the distribution by no more than it.
    """
    out_V = exceeding(p_V, q_V, torch.empty_like(p_V) if out_V is None else out_V)
    return out_V if _normalise(out_V) else p_V


def remove(p_V: torch.Tensor, token: int, normalised: bool = True) -> None:
    """Take ``token`` from ``p_V`` [V], in place, and renormalise; nothing happens if it has no other token.

    Then the token was accepted with probability 1 up to rounding.
    """
    kept = p_V[token].clone()
    p_V[token] = 0.0
    if not (_normalise(p_V) if normalised else total(p_V) > 0):
        p_V[token] = kept


def without(p_V: torch.Tensor, token: int) -> torch.Tensor:
    """``p_V`` [V] without ``token``, renormalised, in memory of its own: the next draw of a sequence comes from it."""
    rest_V = p_V.clone()
    remove(rest_V, token)
    return rest_V


def _normalise(mass_V: torch.Tensor) -> bool:
    """Divide by the sum, in place; False if that is not positive, and then nothing was done."""
    whole = total(mass_V)
    if not whole > 0:
        return False
    for (mass,) in pieces(mass_V):
        mass.div_(whole)
    return True
