"""Weights in floating point to weights in few bits, most of them as GGUF has them.

Legend: O outputs, I inputs, G groups of a row, S scales of a row, K inputs of a group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from spec_sdk.ops.quantized import GROUP, QuantizedMatrix, middle_of, packed_codes, scales_of_group

AT_ONCE = 1 << 18
"""Weights that a thread quantizes at a time. What is computed in between takes some 20 bytes for each, and stays in the
caches.
"""


def quantize(weight_OI: torch.Tensor, bits: int) -> QuantizedMatrix:
    """The nearest matrix of 8 bits (symmetric, as Q8_0), 4 or 5 bits (minimum and range of each group, as Q4_1 and
    Q5_1) or 6 bits (the largest of 16 inputs is -32 scales).

    Of all but 6 bits it is to the bit what llama.cpp makes of the same weights. Raises ValueError for rows that are not
    whole groups of 32.
    """
    if weight_OI.shape[1] % GROUP:
        raise ValueError(f"{weight_OI.shape[1]} inputs are not whole groups of {GROUP}")
    step = max(1, AT_ONCE * torch.get_num_threads() // max(1, weight_OI.shape[1]))
    parts = [_OF_ROWS[bits](part.float().view(len(part), -1, GROUP)) for part in torch.split(weight_OI, step)]
    return QuantizedMatrix.stacked(parts)


def _in_eight(w_OGK: torch.Tensor) -> QuantizedMatrix:
    scale_OG = w_OGK.abs().amax(-1) / 127
    x_OGK = w_OGK * _inverse(scale_OG)[..., None]
    # halves are rounded away from zero, as C's roundf does
    size_OGK = x_OGK.abs()
    whole_OGK = size_OGK.floor()
    whole_OGK += size_OGK.sub_(whole_OGK) >= 0.5
    return QuantizedMatrix(whole_OGK.copysign_(x_OGK).to(torch.int8).flatten(1), scale_OG.half())


def _from_least(bits: int, w_OGK: torch.Tensor) -> QuantizedMatrix:
    least_OG, most_OG, last = w_OGK.amin(-1), w_OGK.amax(-1), (1 << bits) - 1
    scale_OG = (most_OG - least_OG) / last
    x_OGK = (w_OGK - least_OG[..., None]).mul_(_inverse(scale_OG)[..., None])
    # what is behind the point is cut off
    codes_OC = packed_codes(x_OGK.add_(0.5).clamp_(0, last).to(torch.int8), bits)
    return QuantizedMatrix(codes_OC, scale_OG.half(), least_OG.half())


def _in_six(w_OGK: torch.Tensor) -> QuantizedMatrix:
    w_OSK = w_OGK.reshape(len(w_OGK), -1, GROUP // scales_of_group(6))
    scale_OS1 = w_OSK.take_along_dim(w_OSK.abs().argmax(-1, keepdim=True), -1) / -32
    codes_OSK = (w_OSK * _inverse(scale_OS1)).round_().clamp_(-32, 31).add_(middle_of(6)).to(torch.int8)
    return QuantizedMatrix(packed_codes(codes_OSK.view(w_OGK.shape), 6), scale_OS1.squeeze(-1).half())


_OF_ROWS: dict[int, Callable[[torch.Tensor], QuantizedMatrix]] = {
    4: functools.partial(_from_least, 4),
    5: functools.partial(_from_least, 5),
    6: _in_six,
    8: _in_eight,
}


def _inverse(scale_OG: torch.Tensor) -> torch.Tensor:
    """0 for a scale so small that its inverse overflows: as float16 it is 0."""
    inverse_OG = 1 / scale_OG
    return torch.where(inverse_OG.isfinite(), inverse_OG, 0.0)
