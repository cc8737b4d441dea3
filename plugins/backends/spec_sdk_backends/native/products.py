"""Linear layers whose weights lie in the panels that the native kernels multiply.

A row's result does not depend, to the bit, on the rows beside it nor on the number of threads. Torch multiplies only
where a derivative is asked for, and passes from which on it is faster (:func:`most_rows`).

Legend: I inputs, O outputs, P panels of outputs, S steps of inputs, C outputs of a panel, D inputs of a step, L layers
of a stack, g layers of a run, K rows.
"""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.library import library, multiply_to
from spec_sdk_backends.native.panels import from_panels, rows_of_panels, to_panels
from spec_sdk_backends.native.row_numbers import numbers_of
from spec_sdk_backends.native.structures import DTYPES, Matrix, is_stand_in


def multiply(matrix: Matrix, x: torch.Tensor) -> torch.Tensor:
    """x [..., I] times the matrix: [..., O], by the native kernel."""
    x_KI = x.reshape(-1, x.shape[-1])
    if x_KI.stride(1) != 1:
        x_KI = x_KI.contiguous()
    y: torch.Tensor = x.new_empty((*x.shape[:-1], matrix.outputs))
    multiply_to(library(), matrix, x_KI, y)
    return y


def native_linear(
    x: torch.Tensor, weight_PSCD: torch.Tensor, outputs: int, bias_O: torch.Tensor | None
) -> torch.Tensor:
    """x [..., I] times dense weights: [..., O]."""
    return multiply(Matrix.dense(weight_PSCD, outputs, x.shape[-1], bias_O), x)


def _shape_of_linear(
    x: torch.Tensor, weight_PSCD: torch.Tensor, outputs: int, bias_O: torch.Tensor | None
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], outputs)


_OPERATIONS: Any = torch.library.Library("spec_sdk_backends", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATIONS.define("native_linear(Tensor x, Tensor weight, SymInt outputs, Tensor? bias) -> Tensor")
_OPERATIONS.impl("native_linear", native_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk_backends::native_linear", _shape_of_linear, lib=_OPERATIONS)


def is_narrow(x: torch.Tensor, bits: int = 0, rounds: bool = False) -> bool:
    """Whether the native kernel multiplies ``x`` [..., I] with dense weights, or those of so many bits: no derivative
    is asked for, and torch with weights that are put in rows, or expanded, for the call is not faster.
    """
    return x.dtype in DTYPES and not x.requires_grad and x.numel() <= most_rows(x.dtype, bits, rounds) * x.shape[-1]


class NativeProjection(Projection):
    """One matrix in panels, its only copy: an embedding that is also the output head looks its rows up here."""

    gives_rows = True

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        self._hold(to_panels(weight_OI, library()), weight_OI.shape[0], weight_OI.shape[1], bias_O)

    @classmethod
    def of(cls, panels_PSCD: torch.Tensor, outputs: int, inputs: int, bias_O: torch.Tensor | None) -> Self:
        """The projection of a matrix that lies in panels: no copy."""
        made = cls.__new__(cls)
        made._hold(panels_PSCD, outputs, inputs, bias_O)
        return made

    def _hold(self, panels_PSCD: torch.Tensor, outputs: int, inputs: int, bias_O: torch.Tensor | None) -> None:
        super().__init__(panels_PSCD, None if bias_O is None else bias_O.contiguous())
        self._outputs, self._inputs = outputs, inputs

    @property
    def weight_OI(self) -> torch.Tensor:
        return from_panels(self._weight_OI, self._outputs, self._inputs)

    @property
    def inputs(self) -> int:
        return self._inputs

    @property
    def outputs(self) -> int:
        return self._outputs

    @property
    def matrix(self) -> Matrix:
        """The matrix for a kernel, as long as this projection lives."""
        return Matrix.dense(self._weight_OI, self._outputs, self._inputs, self.bias_O)

    def rows(self, row_K: torch.Tensor) -> torch.Tensor:
        if not is_stand_in(row_K):
            # panels have zeros behind the last row
            numbers_of(row_K, self._outputs)
        return rows_of_panels(self._weight_OI, row_K)[:, : self._inputs]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if is_stand_in(self._weight_OI):
            operation = torch.ops.spec_sdk_backends.native_linear
            y: torch.Tensor = operation(x, self._weight_OI, self._outputs, self.bias_O)
            return y
        return multiply(self.matrix, x) if is_narrow(x) else F.linear(x, self.weight_OI, self.bias_O)


class NativeProjectionStack(ProjectionStack):
    """The matrices of L layers in one tensor of panels, multiplied one after the other."""

    def __init__(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> None:
        self._hold(to_panels(weight_LOI, library()), weight_LOI.shape[1], weight_LOI.shape[2], bias_LO)

    def _hold(self, panels_LPSCD: torch.Tensor, outputs: int, inputs: int, bias_LO: torch.Tensor | None) -> None:
        super().__init__(panels_LPSCD, None if bias_LO is None else bias_LO.contiguous())
        self._outputs, self._inputs = outputs, inputs

    def __getitem__(self, layer: int) -> Projection:
        bias_O = None if self._bias_LO is None else self._bias_LO[layer]
        return NativeProjection.of(self._weight_LOI[layer], self._outputs, self._inputs, bias_O)

    def layers(self, first: int, end: int) -> ProjectionStack:
        made = NativeProjectionStack.__new__(NativeProjectionStack)
        biases = None if self._bias_LO is None else self._bias_LO[first:end]
        made._hold(self._weight_LOI[first:end], self._outputs, self._inputs, biases)
        return made

    def __call__(self, x_gKI: torch.Tensor) -> torch.Tensor:
        if not is_narrow(x_gKI[0]):
            return torch.stack([self[layer](x_KI) for layer, x_KI in enumerate(x_gKI)])
        g, K, _ = x_gKI.shape
        x_gKI = x_gKI.contiguous()
        y_gKO = x_gKI.new_empty((g, K, self._outputs))
        for i in range(g):
            bias_O = None if self._bias_LO is None else self._bias_LO[i]
            multiply_to(
                library(), Matrix.dense(self._weight_LOI[i], self._outputs, self._inputs, bias_O), x_gKI[i], y_gKO[i]
            )
        return y_gKO
