"""The most probable tokens of a few rows of logits, in one reading of them.

Legend: N rows, V logits of a row, K kept of each.
"""

from __future__ import annotations

import torch

from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.structures import DTYPES

MOST_KEPT = 64
"""``TOP_STEP`` of ``source/top.h``."""


def top_log_probabilities(logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What :meth:`spec_sdk.ops.Ops.top_log_probabilities` returns, of equal logits that of the lowest place first; None
    for logits that the kernel does not take.
    """
    rows, columns = logits_NV.shape
    known = logits_NV.dtype in DTYPES and logits_NV.device.type == "cpu" and logits_NV.stride(1) == 1
    if not known or not rows or not 0 < count <= MOST_KEPT:
        return None
    logprob_NK = torch.empty((rows, count), dtype=torch.float32)
    place_NK = torch.empty((rows, count), dtype=torch.int64)
    library().spec_top(
        DTYPES[logits_NV.dtype],
        logits_NV.data_ptr(),
        logits_NV.stride(0),
        rows,
        columns,
        count,
        logprob_NK.data_ptr(),
        place_NK.data_ptr(),
        torch.get_num_threads(),
    )
    return logprob_NK, place_NK
