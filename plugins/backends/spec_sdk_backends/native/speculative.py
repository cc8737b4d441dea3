"""Attention that is predicted from both ends of the prefix, and the exact one, by the native kernels.

Legend: N queries, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.types import Announce, Ends, SpeculativeAttention
from spec_sdk_backends.native import structures
from spec_sdk_backends.native.attention import attends, in_rows
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.structures import DTYPES, Cache, Heads, Pass, address


def speculative_attention(
    q_BNHD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    mask: AttentionMask,
    ends: Ends,
    announce: Announce | None,
) -> SpeculativeAttention | None:
    """What :meth:`spec_sdk.ops.Ops.speculative_attention` returns; None where the kernels do not compute it: of several
    requests, with a window, or of keys with nothing between their ends.
    """
    (B, N, H, D), G = q_BNHD.shape, k_BGSD.shape[1]
    if B != 1 or mask.window is not None or mask.prefix <= ends.keys or mask.key_start_T.dtype != torch.int32:
        return None
    if not attends(q_BNHD[None], k_BGSD[None]) or v_BGSD.stride() != k_BGSD.stride() or v_BGSD.dtype != k_BGSD.dtype:
        return None
    q_BNHD = in_rows(q_BNHD)
    predicted_BNHD, exact_BNHD = (torch.empty((B, N, H, D), dtype=q_BNHD.dtype) for _ in range(2))
    mean_NHD, log_sum_NH = torch.empty((N, H, D)), torch.empty((N, H))
    difference_sq_BN, norm_sq_BN = torch.empty((2, B, N))
    of_pass, heads = Pass.of_mask(mask), Heads(H, G, D, D**-0.5, 0.0, 0, None)
    storage = Cache.of(k_BGSD[None], v_BGSD[None])
    both_ends = structures.Ends(ends.first, ends.last, mean_NHD.data_ptr(), log_sum_NH.data_ptr())
    work = (
        DTYPES[q_BNHD.dtype],
        address(heads),
        address(of_pass),
        address(storage),
        address(both_ends),
        q_BNHD.data_ptr(),
        q_BNHD.stride(1),
    )
    library().spec_attend_to_ends(*work, predicted_BNHD.data_ptr(), torch.get_num_threads())
    if announce is not None:
        announce(predicted_BNHD)
    squares = difference_sq_BN.data_ptr(), norm_sq_BN.data_ptr()
    library().spec_attend_between(*work, exact_BNHD.data_ptr(), *squares, torch.get_num_threads())
    return SpeculativeAttention(predicted_BNHD, exact_BNHD, difference_sq_BN, norm_sq_BN)
