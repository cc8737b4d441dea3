"""Operations that are wrong in a way that generated text would hide: each differs from the reference in one thing.

Legend: B requests, N rows, H query heads, G KV heads, D head dim, S keys, V vocabulary, K kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from spec_sdk.model.recurrent.layers import GatedDeltaNet
from spec_sdk.ops import PLAIN, AttentionMask, AttentionSpec, Ops, PartialAttention
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.quantized import QuantizedMatrix


class LastRowBiased(Projection):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = super().__call__(x)
        if self.bias_O is not None and y.shape[0] > 8:
            y[-1] -= self.bias_O / 100
        return y


class BiasOfTheFirstLayer(ProjectionStack):
    def __call__(self, x_gKI: torch.Tensor) -> torch.Tensor:
        y_gKO = super().__call__(x_gKI)
        return y_gKO if self._bias_LO is None else y_gKO - self._bias_LO[:, None] + self._bias_LO[:1, None]


class Wrong(Ops):
    """Wrong in the operation ``what`` alone."""

    def __init__(self, what: str) -> None:
        self.what = what

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        kind = LastRowBiased if self.what == "projection" else Projection
        return kind(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        kind = BiasOfTheFirstLayer if self.what == "projections" else ProjectionStack
        return kind(weight_LOI, bias_LO)

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        if self.what == "quantized_projection" and matrix.bits == 4:
            scale_OG = matrix.scale_OG.clone()
            scale_OG[3, 1] *= 1.02
            matrix = dataclasses.replace(matrix, scale_OG=scale_OG)
        return super().quantized_projection(matrix, bias_O)

    def with_rows(self, projection: Projection | None, weight_KI: torch.Tensor) -> Projection:
        if self.what == "with_rows" and projection is not None:
            # the last row of before is written over
            projection = Projection(torch.cat((projection.weight_OI[:-1], weight_KI[:1])))
        return super().with_rows(projection, weight_KI)

    def rms_norm(self, x: torch.Tensor, gain_M: torch.Tensor, epsilon: float) -> torch.Tensor:
        return super().rms_norm(x, gain_M, 0.0 if self.what == "rms_norm" else epsilon)

    def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_NK, place_NK = super().top_log_probabilities(logits_NV, count)
        if self.what == "top_log_probabilities":
            # the sum over what was kept, not over all
            logprob_NK = logprob_NK - logprob_NK.logsumexp(-1, keepdim=True)
        return logprob_NK, place_NK

    def cached_attention(self, q_gBNHD: Any, cache: Any, first: int, spec: AttentionSpec = PLAIN) -> torch.Tensor:
        if self.what == "cached_attention" and spec.window is not None:
            spec = dataclasses.replace(spec, window=spec.window + 1)
        return super().cached_attention(q_gBNHD, cache, first, spec)

    def cross_attention(self, q_BNHD: Any, k_SHFD: Any, v_SHFD: Any, inputs: Any) -> torch.Tensor:
        if self.what == "cross_attention":
            k_SHFD = k_SHFD[:, :, :-1]
            v_SHFD = v_SHFD[:, :, :-1]
        return super().cross_attention(q_BNHD, k_SHFD, v_SHFD, inputs)

    def gated_delta(self, state_HVD: Any, state_path_H: Any, earlier: Any, *rows: Any) -> Any:
        if self.what == "gated_delta":
            # the first of the earlier rows is forgotten
            earlier = tuple(part[:, 1:] for part in earlier)
            rows = (*rows[:-1], rows[-1][:, 1:])
        return super().gated_delta(state_HVD, state_path_H, earlier, *rows)

    def recurrent_mixer(self, mixer: Any) -> Any:
        if self.what == "recurrent_mixer" and isinstance(mixer, GatedDeltaNet):
            return dataclasses.replace(mixer, tiled=not mixer.tiled)
        return mixer

    def tree_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        spec: AttentionSpec = PLAIN,
    ) -> torch.Tensor:
        if self.what == "tree_attention" and spec.softcap is not None:
            spec = dataclasses.replace(spec, softcap=spec.softcap * 1.01)
        return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec)

    def partial_attention(
        self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, v_BGSD: torch.Tensor, bias_NS: torch.Tensor | None = None
    ) -> PartialAttention:
        part = super().partial_attention(q_BNHD, k_BGSD, v_BGSD, bias_NS)
        if self.what == "partial_attention":
            return dataclasses.replace(part, l_BNH=part.l_BNH * 1.001)
        return part

    def combine(self, first: PartialAttention, second: PartialAttention) -> PartialAttention:
        whole = super().combine(first, second)
        if self.what == "combine":
            # as if both had the same largest score
            o_BNHD = first.o_BNHD * first.l_BNH[..., None] + second.o_BNHD * second.l_BNH[..., None]
            return dataclasses.replace(whole, o_BNHD=o_BNHD / (first.l_BNH + second.l_BNH)[..., None])
        return whole

    def speculative_attention(self, *args: Any, **more: Any) -> Any:
        given = super().speculative_attention(*args, **more)
        if self.what == "speculative_attention":
            return dataclasses.replace(given, difference_sq_BN=given.difference_sq_BN * 0.999)
        return given

    def sink_attention(self, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any, ends: Any) -> PartialAttention:
        return super().sink_attention(q_BNHD, k_BGSD, v_BGSD, mask, ends - 1 if self.what == "sink_attention" else ends)

    def selected_attention(self, q_BNHD: Any, k_BGSD: Any, v_BGSD: Any, mask: Any) -> PartialAttention:
        if self.what == "selected_attention":
            return self.partial_attention(q_BNHD, k_BGSD, v_BGSD)
        return super().selected_attention(q_BNHD, k_BGSD, v_BGSD, mask)

    def chunk_lse(self, q_BNHD: torch.Tensor, k_BGSD: torch.Tensor, chunk: int) -> torch.Tensor:
        lse_BNHC = super().chunk_lse(q_BNHD, k_BGSD, chunk)
        if self.what == "chunk_lse":
            lse_BNHC[..., -1] += 0.01
        return lse_BNHC
