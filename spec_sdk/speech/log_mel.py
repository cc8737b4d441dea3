"""Whisper's log-mel features (Radford et al. 2022, §2.2): what the first convolution of its encoder sees.

Legend: T samples, X mel bins, Q frequencies, F frames.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

RATE = 16_000
"""Samples a second."""
WINDOW = 400
"""Samples of a Fourier transform: 25 ms."""
HOP = 160
"""Samples from frame to frame: 10 ms."""
BREAK_HZ = 1000.0
BREAK_MEL = 15.0
MEL_PER_OCTAVE = 27.0 / math.log2(6.4)


def log_mel(samples_T: torch.Tensor, mels: int, frames: int) -> torch.Tensor:
    """Features [X, F], float32, of a sound at :data:`RATE`, which silence or a cut makes ``frames`` frames long.

    Power of every mel band, as log10, at most 8 below the sound's loudest; then (x + 4) / 4.
    """
    length = frames * HOP
    samples_T = F.pad(samples_T[:length].float(), (0, max(0, length - len(samples_T))))
    window = torch.hann_window(WINDOW)
    spectrum_QF = torch.stft(samples_T, WINDOW, HOP, window=window, return_complex=True)[:, :-1]
    power_QF = spectrum_QF.abs().square().contiguous()
    decades_XF = (mel_filters(mels) @ power_QF).clamp_min(1e-10).log10()
    return (decades_XF.clamp_min(float(decades_XF.max()) - 8.0) + 4.0) / 4.0


@functools.cache
def mel_filters(mels: int) -> torch.Tensor:
    """Triangles on Slaney's mel scale from 0 Hz to half the rate, each of area 1 (in Hz / 2): [X, Q], float32."""
    frequency_Q = torch.linspace(0, RATE / 2, 1 + WINDOW // 2, dtype=torch.float64)
    corner = _hertz(torch.linspace(0, _mel(RATE / 2), mels + 2, dtype=torch.float64))
    low_X1, middle_X1, high_X1 = corner[:-2, None], corner[1:-1, None], corner[2:, None]
    rising_XQ = (frequency_Q - low_X1) / (middle_X1 - low_X1)
    falling_XQ = (high_X1 - frequency_Q) / (high_X1 - middle_X1)
    return (torch.minimum(rising_XQ, falling_XQ).clamp_min(0.0) * 2 / (high_X1 - low_X1)).float()


def _mel(hertz: float) -> float:
    """Slaney's scale from 1 kHz on, where it is logarithmic; below it is linear, as :func:`_hertz` has it."""
    return BREAK_MEL + MEL_PER_OCTAVE * math.log2(hertz / BREAK_HZ)


def _hertz(mel: torch.Tensor) -> torch.Tensor:
    linear = mel * BREAK_HZ / BREAK_MEL
    return torch.where(mel < BREAK_MEL, linear, BREAK_HZ * torch.exp2((mel - BREAK_MEL) / MEL_PER_OCTAVE))
