"""Which tokens of a row of logits the filters keep, as two numbers a row: the least kept logit, and the last kept token
among those that equal it.

Legend: B samplings, R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from spec_sdk.ops.rows import Shaping

NUMBERS = 4
"""A sampling's temperature, top-k (0: off), top-p (1: off), and the logarithm of its min-p (-inf: off)."""


def numbers_of(shaping: Shaping) -> list[float]:
    """A sampling as the NUMBERS that rows are filtered by."""
    least = math.log(shaping.min_p) if shaping.min_p > 0 else -math.inf
    return [shaping.temperature, float(shaping.top_k), shaping.top_p, least]


def filters(numbers: Sequence[float]) -> bool:
    """Whether a sampling of these numbers keeps fewer tokens than there are."""
    _, top_k, top_p, least = numbers
    return top_k > 0 or top_p < 1 or least > -math.inf


def least_kept(logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least kept logit [R] (float32) and the last kept token [R] (int32) among those that equal it.

    ``shaping_B4``, float64: numbers of B samplings (:func:`numbers_of`), among which rows are shared out evenly, one
    after the other. top-k keeps all that tie with the k-th; where the border of top-p falls between equals, the lower
    ids stay. Waits for no device. Rows are sorted: V logits and V ids a row are written and read.
    """
    rows, vocabulary = logits_RV.shape
    shaping_R4 = shaping_B4.repeat_interleave(rows // len(shaping_B4), 0)
    temperature_R1, top_k_R1, top_p_R1, min_p_R1 = torch.split(shaping_R4, 1, 1)
    temperature_R1 = temperature_R1.float().clamp_min(torch.finfo(torch.float32).tiny)
    sorted_RV, id_RV = logits_RV.float().sort(dim=-1, descending=True, stable=True)
    kth_R1 = sorted_RV.gather(1, (top_k_R1.long() - 1).clamp(0, vocabulary - 1))
    kept_RV = (top_k_R1 == 0) | (sorted_RV >= kth_R1)
    relative_RV = (sorted_RV - sorted_RV[:, :1]) / temperature_R1
    p_RV = relative_RV.masked_fill(~kept_RV, float("-inf")).softmax(-1)
    before_RV = p_RV.double().cumsum(-1) - p_RV
    # the sum of all that top-k keeps is rounded, and may not reach a top-p near 1
    kept_RV &= (before_RV < top_p_R1) | (top_p_R1 >= 1)
    place_R1 = (kept_RV.sum(-1, keepdim=True) - 1).clamp_min(0)
    least_R1 = sorted_RV.gather(-1, place_R1)
    border_R1 = sorted_RV[:, :1] + temperature_R1 * min_p_R1.float()
    above_R1 = border_R1 > least_R1
    last_R1 = torch.where(above_R1, vocabulary, id_RV.gather(-1, place_R1).int())
    return torch.where(above_R1, border_R1, least_R1)[:, 0], last_R1[:, 0].int()


def kept(logits_RV: torch.Tensor, least_R: torch.Tensor, last_R: torch.Tensor) -> torch.Tensor:
    """Whether each token is kept by what :func:`least_kept` gave, bool [R, V]."""
    token_V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)
    least_R1 = least_R[:, None]
    return (logits_RV > least_R1) | ((logits_RV == least_R1) & (token_V <= last_R[:, None]))
