"""Rotary position embeddings, in the half-split ("rotate_half") layout of Hugging Face checkpoints.

Legend: B batch, N tokens, H heads, D head dim, C positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.model.config import Rope, RopeKind, RopeScaling


def inverse_frequencies(head_dim: int, rope: Rope) -> torch.Tensor:
    """Rotation speed of each pair of dimensions [D/2], float32, in radians per token, scaled as the checkpoint asks.

    Pairs that are not rotated are the last ones; their speed is 0.
    """
    theta, scaling = rope.theta, rope.scaling
    rotated = head_dim if rope.dims is None else rope.dims
    if rotated == 0:
        return torch.zeros(head_dim // 2)
    whole = head_dim if rope.proportional else rotated
    frequency = _frequencies(whole, theta) if scaling is None else _SCALED[scaling.kind](whole, theta, scaling)
    return F.pad(frequency[: rotated // 2], (0, (head_dim - rotated) // 2))


def _frequencies(head_dim: int, theta: float) -> torch.Tensor:
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**exponent


def _linear(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    return _frequencies(head_dim, theta) / scaling.factor


def _llama3(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    frequency = _frequencies(head_dim, theta)
    wavelength = 2 * math.pi / frequency
    longest_kept = scaling.original_max_position / scaling.high_freq_factor
    shortest_scaled = scaling.original_max_position / scaling.low_freq_factor
    blend = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * frequency / scaling.factor + blend * frequency
    scaled = torch.where(wavelength > shortest_scaled, frequency / scaling.factor, between)
    return torch.where(wavelength < longest_kept, frequency, scaled)


def _yarn(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    def pair_that_turns(times: float) -> float:
        """The pair, as a real number, that makes so many turns in the original context."""
        return head_dim * math.log(scaling.original_max_position / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    frequency = _frequencies(head_dim, theta)
    return frequency / scaling.factor * divided + frequency * (1 - divided)


def _longrope(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    is_long = scaling.context > scaling.original_max_position
    factors = scaling.long_factors if is_long else scaling.short_factors
    return _frequencies(head_dim, theta) / torch.tensor(factors, dtype=torch.float32)


def _dynamic(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    reach = max(scaling.context, scaling.original_max_position) / scaling.original_max_position
    stretch: float = (scaling.factor * reach - (scaling.factor - 1)) ** (head_dim / (head_dim - 2))
    return _frequencies(head_dim, theta * stretch)


_SCALED: Mapping[RopeKind, Callable[[int, float, RopeScaling], torch.Tensor]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "dynamic": _dynamic,
}


Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [B, N, 1, D] of a pass's rows."""


class RotaryTable:
    """Cosines and sines of all positions that a cache has room for, [C, D] each."""

    def __init__(self, head_dim: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> None:
        self._frequency = inverse_frequencies(head_dim, rope).to(device)
        factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor
        # what is not rotated stays as it is
        self._factor_D = torch.where(self._frequency == 0, 1.0, factor).repeat(2)
        self._dtype = dtype
        self._tables = torch.empty(0), torch.empty(0)

    def reserve(self, positions: int) -> int:
        """Have so many positions, or more; how many there are. Where they were fewer, the table is another one now."""
        if positions > self._tables[0].shape[0]:
            position_C = torch.arange(positions, device=self._frequency.device, dtype=torch.float32)
            angle_CD = torch.outer(position_C, self._frequency).repeat(1, 2)
            cos_CD = (angle_CD.cos() * self._factor_D).to(self._dtype)
            sin_CD = (angle_CD.sin() * self._factor_D).to(self._dtype)
            # both at once, for other threads that read them
            self._tables = cos_CD, sin_CD
        return self._tables[0].shape[0]

    def at(self, position_BN: torch.Tensor, positions: int) -> Rotation:
        """Cosines and sines [B, N, 1, D] at ``position_BN``, all less than ``positions``."""
        cos_CD, sin_CD = self.of(positions)
        return cos_CD[position_BN][:, :, None], sin_CD[position_BN][:, :, None]

    def of(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [C, D] of positions 0 … C - 1, so many or more."""
        self.reserve(positions)
        return self._tables


class RotationsAt(Sequence[Rotation]):
    """The rotations of rows at ``position_BN``, all less than ``positions``, looked up in each of ``tables`` when they
    are asked for.
    """

    def __init__(self, tables: Sequence[RotaryTable], position_BN: torch.Tensor, positions: int) -> None:
        self.position_BN = position_BN
        self._rotary, self._positions = tables, positions
        self._found: dict[int, Rotation] = {}

    @property
    def tables(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines [C, D] of each table."""
        return [table.of(self._positions) for table in self._rotary]

    def __len__(self) -> int:
        return len(self._rotary)

    def __getitem__(self, index: Any) -> Any:
        if index not in self._found:
            self._found[index] = self._rotary[index].at(self.position_BN, self._positions)
        return self._found[index]

    def of_rows(self, requests: slice, rows: slice) -> RotationsAt:
        """Those of some rows of some requests."""
        return RotationsAt(self._rotary, self.position_BN[requests, rows], self._positions)


def rotate(x_BNHD: torch.Tensor, cos_BN1D: torch.Tensor, sin_BN1D: torch.Tensor) -> torch.Tensor:
    """Rotate every head of ``x_BNHD`` by its token's position."""
    half = x_BNHD.shape[-1] // 2
    swapped = torch.cat((-x_BNHD[..., half:], x_BNHD[..., :half]), dim=-1)
    return x_BNHD * cos_BN1D + swapped * sin_BN1D
