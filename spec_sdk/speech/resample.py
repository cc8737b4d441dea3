"""Another sampling rate, by interpolation with a windowed sinc.

Legend: T samples, P phases of an output sample between two input samples, K taps.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

ZERO_CROSSINGS = 32
"""Of the sinc, on each side: how steep the filter is."""
ROLL_OFF = 0.95
"""Where the filter cuts, as a share of what the lower of the two rates can hold."""
AT_ONCE = 1 << 15


def resampled(samples_T: torch.Tensor, rate: int, wanted: int) -> torch.Tensor:
    """The sound at ``wanted`` instead of ``rate`` samples a second: float32, ceil(T · wanted / rate) samples.

    Every output sample is a sum over the input samples around it, weighted by a sinc under a Hann window. Frequencies
    above half of the lower rate are filtered out.
    """
    if rate == wanted:
        return samples_T
    divisor = math.gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    cutoff = ROLL_OFF * min(1.0, up / down)
    half = math.ceil(ZERO_CROSSINGS / cutoff)
    offset_K = torch.arange(-half, half + 1, dtype=torch.float64)
    distance_PK = offset_K - torch.arange(up, dtype=torch.float64)[:, None] / up
    window_PK = torch.cos(distance_PK * cutoff / ZERO_CROSSINGS * math.pi / 2).square()
    window_PK = window_PK.masked_fill(distance_PK.abs() * cutoff > ZERO_CROSSINGS, 0.0)
    weight_PK = (torch.sinc(distance_PK * cutoff) * window_PK * cutoff).float()
    around_TK = F.pad(samples_T, (half, half + 1)).unfold(0, 2 * half + 1, 1)
    parts = []
    length = -(-len(samples_T) * up // down)
    for first in range(0, length, AT_ONCE):
        place = torch.arange(first, min(first + AT_ONCE, length)) * down
        parts.append((around_TK[place // up] * weight_PK[place % up]).sum(1))
    return torch.cat(parts)
