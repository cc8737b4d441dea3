"""Linear layers with weights in few bits, multiplied as they are: codes are unpacked in registers.

A product is that of the exact weights scale · code + offset, and nothing is rounded but the sums, in float32; and the
rows, to 8 bits, where that is asked for.

Legend: I inputs, O outputs, P blocks of 16 outputs, G groups of inputs, C bytes of a group of a block.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk_backends.native.products import is_narrow, multiply
from spec_sdk_backends.native.side_by_side import SideBySide
from spec_sdk_backends.native.structures import Matrix, is_stand_in


def native_quantized_linear(
    x: torch.Tensor,
    records_PGC: torch.Tensor,
    outputs: int,
    bias_O: torch.Tensor | None,
    rounds: bool,
    levels: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [..., I] times quantised weights: [..., O]. ``rounds``: x is rounded to 8 bits first."""
    return multiply(SideBySide(records_PGC, outputs, levels).matrix(bias_O, rounds), x)


def _shape(x: torch.Tensor, records_PGC: torch.Tensor, outputs: int, *others: Any) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], outputs)


_OPERATIONS: Any = torch.library.Library("spec_sdk_backends", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATIONS.define(
    "native_quantized_linear"
    "(Tensor x, Tensor records, int outputs, Tensor? bias, bool rounds, Tensor? levels) -> Tensor"
)
_OPERATIONS.impl("native_quantized_linear", native_quantized_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk_backends::native_quantized_linear", _shape, lib=_OPERATIONS)


class NativeQuantizedProjection(QuantizedProjection):
    """One quantised matrix, held once and in the kernels' layout. Wide passes multiply with expanded weights."""

    quantized: SideBySide

    def __init__(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None, rounds: bool = False) -> None:
        super().__init__(SideBySide.of(matrix), None if bias_O is None else bias_O.contiguous(), rounds)

    @functools.cached_property
    def matrix(self) -> Matrix:
        """The matrix for a kernel, as long as this projection lives."""
        return self.quantized.matrix(self.bias_O, self.rounds)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        held = self.quantized
        if is_stand_in(held.records_PGC):
            operation = torch.ops.spec_sdk_backends.native_quantized_linear
            y: torch.Tensor = operation(x, held.records_PGC, held.outputs, self.bias_O, self.rounds, held.levels)
            return y
        return multiply(self.matrix, x) if is_narrow(x, held.bits, self.rounds) else super().__call__(x)
