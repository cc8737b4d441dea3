"""Linear layers with weights in 4 or 8 bits, multiplied as they are: codes are unpacked in registers.

Nothing is rounded but the sums, in float32: a product is that of the exact weights scale · code + offset.

Legend: I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk_backends.native.products import is_narrow, is_stand_in, multiply
from spec_sdk_backends.native.structures import Matrix


def native_quantized_linear(
    x: torch.Tensor,
    codes_OC: torch.Tensor,
    scale_OG: torch.Tensor,
    offset_OG: torch.Tensor | None,
    bias_O: torch.Tensor | None,
) -> torch.Tensor:
    """x [..., I] times quantised weights: [..., O]."""
    return multiply(Matrix.quantized(QuantizedMatrix(codes_OC, scale_OG, offset_OG), bias_O), x)


def _shape(
    x: torch.Tensor,
    codes_OC: torch.Tensor,
    scale_OG: torch.Tensor,
    offset_OG: torch.Tensor | None,
    bias_O: torch.Tensor | None,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], codes_OC.shape[0])


_OPERATIONS: Any = torch.library.Library("spec_sdk_backends", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATIONS.define(
    "native_quantized_linear(Tensor x, Tensor codes, Tensor scale, Tensor? offset, Tensor? bias) -> Tensor"
)
_OPERATIONS.impl("native_quantized_linear", native_quantized_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk_backends::native_quantized_linear", _shape, lib=_OPERATIONS)


class NativeQuantizedProjection(QuantizedProjection):
    """One quantised matrix. Wide passes multiply with weights that are expanded for the call."""

    @property
    def matrix(self) -> Matrix:
        """The matrix for a kernel, as long as this projection lives."""
        return Matrix.quantized(self.quantized, self.bias_O)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        held = self.quantized
        if is_stand_in(held.codes_OC):
            operation = torch.ops.spec_sdk_backends.native_quantized_linear
            y: torch.Tensor = operation(x, held.codes_OC, held.scale_OG, held.offset_OG, self.bias_O)
            return y
        return multiply(self.matrix, x) if is_narrow(x) else super().__call__(x)
