"""Linear layers whose row-major weights the native kernels multiply where a pass is narrow, and torch where it is wide.

A row's result does not depend, to the bit, on the rows beside it nor on the number of threads, as long as the native
kernel computes it: up to :func:`most_rows` rows.

Legend: I inputs, O outputs, L layers of a stack, g layers of a run, K rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.library import DTYPES, library
from spec_sdk_backends.native.structures import Matrix, address


def multiply(matrix: Matrix, x: torch.Tensor) -> torch.Tensor:
    """x [..., I] times the matrix: [..., O], by the native kernel."""
    x_KI = x.reshape(-1, x.shape[-1])
    if x_KI.stride(1) != 1:
        x_KI = x_KI.contiguous()
    y: torch.Tensor = x.new_empty((*x.shape[:-1], matrix.outputs))
    multiply_to(matrix, x_KI, y)
    return y


def multiply_to(matrix: Matrix, x_KI: torch.Tensor, y: torch.Tensor) -> None:
    """The same into ``y``, which is contiguous, of rows whose elements are."""
    library().spec_product(
        DTYPES[x_KI.dtype],
        address(matrix),
        x_KI.data_ptr(),
        x_KI.stride(0),
        x_KI.shape[0],
        y.data_ptr(),
        torch.get_num_threads(),
    )


def native_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x [..., I] times dense weights: [..., O]."""
    return multiply(Matrix.dense(weight_OI, bias_O), x)


def _shape_of_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight_OI.shape[0])


_OPERATIONS: Any = torch.library.Library("spec_sdk_backends", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATIONS.define("native_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_OPERATIONS.impl("native_linear", native_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk_backends::native_linear", _shape_of_linear, lib=_OPERATIONS)


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for another in a computation that is traced: a compiler must not look into a product."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def is_narrow(x: torch.Tensor, bits: int = 0) -> bool:
    """Whether the native kernel multiplies ``x`` [..., I]: few rows in its dtypes, and no derivative is asked for."""
    return x.dtype in DTYPES and not x.requires_grad and x.numel() <= most_rows(x.dtype, bits) * x.shape[-1]


class NativeProjection(Projection):
    """One row-major matrix, in the place where it was: an embedding that is also the output head is held once."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(weight_OI.contiguous(), None if bias_O is None else bias_O.contiguous())

    @property
    def matrix(self) -> Matrix:
        """The matrix for a kernel, as long as this projection lives."""
        return Matrix.dense(self._weight_OI, self.bias_O)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if is_stand_in(self._weight_OI):
            y: torch.Tensor = torch.ops.spec_sdk_backends.native_linear(x, self._weight_OI, self.bias_O)
            return y
        return multiply(self.matrix, x) if is_narrow(x) else F.linear(x, self._weight_OI, self.bias_O)


class NativeProjectionStack(ProjectionStack):
    """The matrices of L layers in one tensor, multiplied one after the other where passes are narrow."""

    def __init__(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> None:
        super().__init__(weight_LOI.contiguous(), None if bias_LO is None else bias_LO.contiguous())

    def __getitem__(self, layer: int) -> Projection:
        return NativeProjection(self._weight_LOI[layer], None if self._bias_LO is None else self._bias_LO[layer])

    def layers(self, first: int, end: int) -> ProjectionStack:
        biases = None if self._bias_LO is None else self._bias_LO[first:end]
        return NativeProjectionStack(self._weight_LOI[first:end], biases)

    def __call__(self, x_gKI: torch.Tensor) -> torch.Tensor:
        if not is_narrow(x_gKI[0]):
            return super().__call__(x_gKI)
        g, K, _ = x_gKI.shape
        x_gKI = x_gKI.contiguous()
        y_gKO = x_gKI.new_empty((g, K, self._weight_LOI.shape[1]))
        for i in range(g):
            bias_O = None if self._bias_LO is None else self._bias_LO[i]
            multiply_to(Matrix.dense(self._weight_LOI[i], bias_O), x_gKI[i], y_gKO[i])
        return y_gKO
