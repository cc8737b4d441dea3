"""Launches the kernels that find the most probable tokens of each row.

Legend: K rows, V vocabulary, S parts of it, W tokens of a row that are looked for.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk_backends.dependent_launches import overlapped
from spec_sdk_backends.greedy_choice import PART, PART_WARPS
from spec_sdk_backends.top_tokens_kernels import top_of_all_kernel, top_of_parts_kernel
from spec_sdk_backends.tree_attention import DTYPES

MOST_WANTED = 16
"""Each further token is one more look at all of a part."""


def takes(logits_KV: torch.Tensor, count: int) -> bool:
    """Whether the kernels look for so many tokens of such rows."""
    return logits_KV.dtype in DTYPES and logits_KV.numel() > 0 and 1 <= count <= MOST_WANTED


def top_log_probabilities(logits_KV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What :meth:`spec_sdk.ops.Ops.top_log_probabilities` returns for rows that :func:`takes` has nothing against, of
    equal logits that of the lowest place first.
    """
    logits, (K, V) = logits_KV.contiguous(), logits_KV.shape
    # a kernel for every count would be compiled in the middle of a request
    wanted, kept, parts = triton.next_power_of_2(count), min(count, V), triton.cdiv(V, PART)
    top_KSW = torch.empty((K, parts, wanted), dtype=torch.float32, device=logits.device)
    token_KSW = torch.empty((K, parts, wanted), dtype=torch.int32, device=logits.device)
    sum_KS = torch.empty((K, parts), dtype=torch.float32, device=logits.device)
    logprob_KW = torch.empty((K, kept), dtype=torch.float32, device=logits.device)
    place_KW = torch.empty((K, kept), dtype=torch.int64, device=logits.device)
    shared = {"WANTED": wanted, **overlapped(logits.device)}
    part, blocks = min(PART, triton.next_power_of_2(V)), triton.next_power_of_2(parts)
    top_of_parts_kernel[(K, parts)](
        logits, top_KSW, token_KSW, sum_KS, V, parts, BLOCK_V=part, num_warps=PART_WARPS, **shared
    )
    top_of_all_kernel[(K,)](
        top_KSW,
        token_KSW,
        sum_KS,
        logprob_KW,
        place_KW,
        parts,
        kept,
        BLOCK_S=blocks,
        BLOCK_C=triton.next_power_of_2(parts * wanted),
        num_warps=2,
        **shared,
    )
    return logprob_KW, place_KW
