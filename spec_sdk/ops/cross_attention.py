"""Attention of a pass's rows to what an encoder said of each request.

Legend: B requests, N rows of a request, H heads, D head dim, S cache slots, F states of the encoder.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from spec_sdk.ops.pass_inputs import PassInputs


def cross_attention(
    q_BNHD: torch.Tensor, k_SHFD: torch.Tensor, v_SHFD: torch.Tensor, inputs: PassInputs
) -> torch.Tensor:
    """Attention of every row over all F states in its request's slot, nothing masked: [B, N, H, D].

    One request after the other, so that what it gets does not depend on those beside it, and no K or V is copied. Rows
    of padding get 0.
    """
    outputs = []
    for part in inputs.parts:
        q_1HnD = q_BNHD[part.index : part.index + 1, : part.live].transpose(1, 2)
        own = slice(part.slot, part.slot + 1)
        o_1nHD = F.scaled_dot_product_attention(q_1HnD, k_SHFD[own], v_SHFD[own]).transpose(1, 2)
        outputs.append(F.pad(o_1nHD, (0, 0, 0, 0, 0, q_BNHD.shape[1] - part.live)))
    return torch.cat(outputs)
