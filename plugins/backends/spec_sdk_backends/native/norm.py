"""RMS norms of a few rows, in one call (legend: M dims of a norm)."""

from __future__ import annotations

import torch

from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.structures import DTYPES, Gain, address

MOST_ROWS = 64
"""Torch shares the work of more rows among its threads."""


def rms_norm(x: torch.Tensor, gain_M: torch.Tensor, epsilon: float, most_rows: int = MOST_ROWS) -> torch.Tensor | None:
    """What :meth:`spec_sdk.ops.Ops.rms_norm` returns; None for rows that the kernel does not take, or too many.

    A gain in float32 beside rows in bfloat16 is multiplied as it is; the result is rounded once.
    """
    size = gain_M.shape[0]
    if (
        x.dtype not in DTYPES
        or not Gain.suits(gain_M, x.dtype)
        or x.device.type != "cpu"
        or x.numel() > most_rows * size
        or torch.is_grad_enabled()
        or not (x.is_contiguous() and gain_M.is_contiguous())
    ):
        return None
    to = torch.empty_like(x)
    gain, rows = Gain.of(gain_M, x.dtype), x.numel() // size
    library().spec_norm(DTYPES[x.dtype], x.data_ptr(), rows, size, address(gain), epsilon, to.data_ptr(), 1)
    return to
