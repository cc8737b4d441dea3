"""Rotary position embeddings, in the half-split ("rotate_half") layout of Hugging Face checkpoints.

Legend: B batch, N tokens, H heads, D head dim, C positions.
"""

from __future__ import annotations

import math

import torch

from spec_sdk.model.config import Rope


def inverse_frequencies(head_dim: int, rope: Rope) -> torch.Tensor:
    """Rotation speed of each pair of dimensions [D/2], float32, with the checkpoint's rope scaling applied.

    ``linear`` divides every frequency by the factor. ``llama3`` divides the slow ones, keeps the fast ones and
    interpolates between (Llama 3.1's context extension).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequency = 1.0 / rope.theta**exponent
    scaling = rope.scaling
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength = 2 * math.pi / frequency
    longest_kept = scaling.original_max_position / scaling.high_freq_factor
    shortest_scaled = scaling.original_max_position / scaling.low_freq_factor
    blend = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * frequency / scaling.factor + blend * frequency
    scaled = torch.where(wavelength > shortest_scaled, frequency / scaling.factor, between)
    return torch.where(wavelength < longest_kept, frequency, scaled)


Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [B, N, 1, D] of a pass's rows."""


class RotaryTable:
    """Cosines and sines of all positions that a cache has room for, [C, D] each."""

    def __init__(self, head_dim: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> None:
        self._frequency = inverse_frequencies(head_dim, rope).to(device)
        self._dtype = dtype
        self._cos_CD = torch.empty(0)
        self._sin_CD = torch.empty(0)

    def at(self, position_BN: torch.Tensor, positions: int) -> Rotation:
        """Cosines and sines [B, N, 1, D] at ``position_BN``, all less than ``positions``."""
        if positions > self._cos_CD.shape[0]:
            position_C = torch.arange(positions, device=self._frequency.device, dtype=torch.float32)
            angle_CD = torch.outer(position_C, self._frequency).repeat(1, 2)
            self._cos_CD = angle_CD.cos().to(self._dtype)
            self._sin_CD = angle_CD.sin().to(self._dtype)
        return self._cos_CD[position_BN][:, :, None], self._sin_CD[position_BN][:, :, None]


def rotate(x_BNHD: torch.Tensor, cos_BN1D: torch.Tensor, sin_BN1D: torch.Tensor) -> torch.Tensor:
    """Rotate every head of ``x_BNHD`` by its token's position."""
    half = x_BNHD.shape[-1] // 2
    swapped = torch.cat((-x_BNHD[..., half:], x_BNHD[..., :half]), dim=-1)
    return x_BNHD * cos_BN1D + swapped * sin_BN1D
