"""The operations of the CPU backend with native kernels.

Legend: L layers, O outputs, I inputs, g layers of a run, B requests, N rows of a request, H query heads, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.types import PLAIN, AttentionSpec
from spec_sdk_backends.native.attention import attends, attention
from spec_sdk_backends.native.library import DTYPES
from spec_sdk_backends.native.products import NativeProjection, NativeProjectionStack
from spec_sdk_backends.native.quantized import NativeQuantizedProjection


class NativeOps(Ops):
    """Linear layers and attention of narrow passes by the native kernels; ``other`` keeps dtypes that they lack."""

    def __init__(self, other: Ops) -> None:
        self.other = other

    def before_pass(self) -> None:
        self.other.before_pass()

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        if weight_OI.dtype not in DTYPES:
            return self.other.projection(weight_OI, bias_O)
        return NativeProjection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        if weight_LOI.dtype not in DTYPES:
            return self.other.projections(weight_LOI, bias_LO)
        return NativeProjectionStack(weight_LOI, bias_LO)

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        return dtype in DTYPES

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        return NativeQuantizedProjection(matrix, bias_O)

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        if not cache.in_place or not attends(q_gBNHD, cache.layers(first, first + 1)[0]):
            return super().cached_attention(q_gBNHD, cache, first, spec)
        return attention(q_gBNHD, cache, first, spec)
