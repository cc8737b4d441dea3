"""Speculative attention on the CPU, from torch's flash attention there, which also tells the log-sum-exp.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, S keys, Q = R*N.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.types import Announce, Ends, SpeculativeAttention


def speculative_attention_on_cpu(
    q_BGQD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    mask: AttentionMask,
    ends: Ends,
    announce: Announce,
) -> SpeculativeAttention:
    """What ``Ops.speculative_attention`` returns, for a first end with keys and a prefix of more than both ends.

    Queries with folded heads. Three calls on views (first chunk, last chunk with the tree, middle): no key is copied or
    read twice. With s the middle's share of the softmax, Â − A = s (Â − middle): no digits are lost where Â is close to
    A. In half precision the parts are rounded before they are merged. ``announce`` gets the prediction before the
    middle is read.
    """
    B, G, Q, D = q_BGQD.shape
    N = mask.queries
    R = Q // N
    dtype = q_BGQD.dtype

    def attend(keys: slice, bias_11QS: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        o_BGQD, lse_BGQ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_BGQD, k_BGSD[:, :, keys], v_BGSD[:, :, keys], attn_mask=bias_11QS
        )
        return o_BGQD.to(lse_BGQ.dtype), lse_BGQ

    def unfolded(o_BGQD: torch.Tensor) -> torch.Tensor:
        return o_BGQD.to(dtype).reshape(B, G * R, N, D).transpose(1, 2)

    bias_11QS = None
    if not mask.sees_everything:
        bias_11QS = F.pad(mask.bias_NT(dtype), (ends.last, 0)).repeat(R, 1)[None, None]
    first_BGQD, first_BGQ = attend(slice(0, ends.first))
    last_BGQD, last_BGQ = attend(slice(mask.prefix - ends.last, None), bias_11QS)
    predicted_BGQD = torch.lerp(first_BGQD, last_BGQD, torch.sigmoid(last_BGQ - first_BGQ)[..., None])
    predicted_BNHD = unfolded(predicted_BGQD)
    announce(predicted_BNHD)
    middle_BGQD, middle_BGQ = attend(slice(ends.first, mask.prefix - ends.last))
    share_BGQ = torch.sigmoid(middle_BGQ - torch.logaddexp(first_BGQ, last_BGQ))
    difference_BGQD = (predicted_BGQD - middle_BGQD) * share_BGQ[..., None]
    exact_BGQD = predicted_BGQD - difference_BGQD

    def sum_sq(o_BGQD: torch.Tensor) -> torch.Tensor:
        return o_BGQD.square().sum(-1).reshape(B, G * R, N).sum(1).float()

    return SpeculativeAttention(predicted_BNHD, unfolded(exact_BGQD), sum_sq(difference_BGQD), sum_sq(exact_BGQD))
