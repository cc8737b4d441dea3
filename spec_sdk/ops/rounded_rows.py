"""Rows rounded to 8 bits before they are multiplied with weights in few bits, as llama.cpp does on the CPU.

Legend: I inputs, G groups of 32 inputs.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.quantized import GROUP

MOST_CODE = 127


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., I] with each group of 32 inputs rounded to scale · code: scale their largest size / 127, codes whole.

    What is not finite stays so in its whole group. The result has the dtype of x.
    """
    x_GJ = x.float().reshape(*x.shape[:-1], -1, GROUP)
    largest_G1 = x_GJ.abs().amax(-1, keepdim=True)
    # a number over a tensor would be its reciprocal times the number, which halves are rounded differently with
    factor_G1 = torch.where(largest_G1 > 0, torch.full_like(largest_G1, MOST_CODE) / largest_G1, 0.0)
    # what is not a number makes the scale, and with it the group, none
    rounded: torch.Tensor = largest_G1 / MOST_CODE * torch.round(x_GJ * factor_G1)
    return rounded.flatten(-2).to(x.dtype)
