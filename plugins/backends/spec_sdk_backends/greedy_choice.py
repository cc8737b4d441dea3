"""Launches the kernels that find each row's token under greedy sampling.

Legend: B requests, N rows of a request, K = B*N rows, V vocabulary, S parts of it.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.ops.in_pass import choices
from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.greedy_choice_kernels import largest_of_all_kernel, largest_of_parts_kernel
from spec_sdk_backends.tree_attention import DTYPES

PART, PART_WARPS = 4096, 8
"""Tokens of a part of the vocabulary, and warps of the program that looks at them."""


def greedy_choices(logits_BNV: torch.Tensor) -> torch.Tensor:
    """Each row's token [B, N], int64, as :func:`spec_sdk.ops.in_pass.choices` finds it: the lowest id on ties, and -1
    for unusable logits.
    """
    if logits_BNV.dtype not in DTYPES or not logits_BNV.numel():
        return choices(logits_BNV)
    logits, (B, N, V) = logits_BNV.contiguous(), logits_BNV.shape
    parts = triton.cdiv(V, PART)
    top_KS = torch.empty((B * N, parts), dtype=torch.float32, device=logits.device)
    token_KS = torch.empty((B * N, parts), dtype=torch.int32, device=logits.device)
    choice_BN = torch.empty((B, N), dtype=torch.int64, device=logits.device)
    shared = overlapped(logits.device)
    part = min(PART, triton.next_power_of_2(V))
    largest_of_parts_kernel[(B * N, parts)](
        logits, top_KS, token_KS, V, parts, BLOCK_V=part, num_warps=PART_WARPS, **shared
    )
    block = triton.next_power_of_2(parts)
    largest_of_all_kernel[(B * N,)](top_KS, token_KS, choice_BN, parts, BLOCK_S=block, num_warps=1, **shared)
    return choice_BN
