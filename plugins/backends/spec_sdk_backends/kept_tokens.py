"""Which tokens of a row of logits the filters keep, as two numbers a row.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import math

import torch

from spec_sdk.ops.rows import Shaping


def least_kept(logits_RV: torch.Tensor, params: Shaping) -> tuple[torch.Tensor, torch.Tensor]:
    """The least kept logit [R] (float32) and the last kept token [R] (int32) among those that equal it.

    top-k keeps all that tie with the k-th; where the border of top-p falls between equals, the lower ids stay. No
    transfer to the host. Rows are sorted for top-p: V logits and V ids a row are written and read.
    """
    rows, vocabulary = logits_RV.shape
    score_RV = logits_RV.float()
    least_R = score_RV.new_full((rows,), float("-inf"))
    last_R = torch.full((rows,), vocabulary, dtype=torch.int32, device=logits_RV.device)
    temperature = max(params.temperature, torch.finfo(torch.float32).tiny)
    if 0 < params.top_k < vocabulary:
        least_R = score_RV.topk(params.top_k).values[:, -1]
    if params.top_p < 1:
        sorted_RV, id_RV = score_RV.sort(dim=-1, descending=True, stable=True)
        relative_RV = (sorted_RV - sorted_RV[:, :1]) / temperature
        kept_RV = sorted_RV >= least_R[:, None]
        p_RV = relative_RV.masked_fill(~kept_RV, float("-inf")).softmax(-1)
        before_RV = p_RV.double().cumsum(-1) - p_RV
        # the sum of all that top-k keeps is rounded, and may not reach a top-p near 1
        place_R1 = ((kept_RV & (before_RV < params.top_p)).sum(-1, keepdim=True) - 1).clamp_min(0)
        least_R = sorted_RV.gather(-1, place_R1)[:, 0]
        last_R = id_RV.gather(-1, place_R1)[:, 0].int()
    if params.min_p > 0:
        border_R = score_RV.amax(-1) + temperature * math.log(params.min_p)
        above_R = border_R > least_R
        least_R = torch.where(above_R, border_R, least_R)
        last_R = torch.where(above_R, vocabulary, last_R)
    return least_R.contiguous(), last_R.contiguous()
