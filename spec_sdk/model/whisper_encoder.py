"""Whisper's encoder: two convolutions over log-mel features, and bidirectional blocks (Radford et al. 2022, §2.2).

Legend: X mel bins, T frames of features, F = T/2 states, M model dim, H heads, D head dim, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection


@dataclass(frozen=True)
class LayerNorm:
    """Mean and variance to 0 and 1, then a gain and a bias."""

    gain_M: torch.Tensor
    bias_M: torch.Tensor
    eps: float

    def __call__(self, x_NM: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., M]."""
        return F.layer_norm(x_NM, self.gain_M.shape, self.gain_M, self.bias_M, self.eps)


@dataclass(frozen=True)
class GeluMlp:
    """An MLP with its norm, without the residual: M → I → M."""

    norm: LayerNorm
    up: Projection
    down: Projection

    def __call__(self, h_NM: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., M]."""
        return self.down(F.gelu(self.up(self.norm(h_NM))))


@dataclass(frozen=True)
class EncoderBlock:
    """One block of the encoder; ``qkv`` is M → 3M."""

    norm: LayerNorm
    qkv: Projection
    output: Projection
    mlp: GeluMlp


@dataclass(frozen=True, eq=False)
class WhisperEncoder:
    """Log-mel features to states. ``positions_FM`` are the checkpoint's (sinusoids, in all of OpenAI's)."""

    heads: int
    convolutions: tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    positions_FM: torch.Tensor
    blocks: Sequence[EncoderBlock]
    norm: LayerNorm

    def __call__(self, features_XT: torch.Tensor) -> torch.Tensor:
        """Features [X, T], on any device, to states [F, M]."""
        (first_MX3, first_M), (second_MM3, second_M) = self.convolutions
        x_1XT = features_XT[None].to(first_MX3)
        x_1MT = F.gelu(F.conv1d(x_1XT, first_MX3, first_M, padding=1))
        x_1MF = F.gelu(F.conv1d(x_1MT, second_MM3, second_M, stride=2, padding=1))
        h_FM = x_1MF[0].T + self.positions_FM
        for block in self.blocks:
            h_FM = h_FM + block.output(self._attention(block.qkv(block.norm(h_FM))))
            h_FM = h_FM + block.mlp(h_FM)
            if h_FM.dtype == torch.float16:
                # as transformers does: a state past float16's range would end as NaN
                largest = torch.finfo(torch.float16).max - 1000
                h_FM = h_FM.clamp(-largest, largest)
        return self.norm(h_FM)

    def _attention(self, qkv_FY: torch.Tensor) -> torch.Tensor:
        q_HFD, k_HFD, v_HFD = qkv_FY.view(qkv_FY.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)
        o_1HFD = F.scaled_dot_product_attention(q_HFD[None], k_HFD[None], v_HFD[None])
        return o_1HFD[0].transpose(0, 1).flatten(1)
