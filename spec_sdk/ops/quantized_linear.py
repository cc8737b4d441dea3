"""Products with weights in few bits: the reference, which expands some rows of weights at a time.

Legend: I inputs, O outputs, N rows of all leading dims together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedMatrix, QuantizedWeights
from spec_sdk.ops.rounded_rows import rounded_rows

EXPANDED = 1 << 20
"""Weights that are expanded at a time: 4 MiB in float32."""


class QuantizedProjection(Projection):
    """y = x Wᵀ + b, for weights that stay in few bits. No expanded copy of them is kept.

    ``rounds``: x is rounded to 8 bits first (:func:`rounded_rows`).
    """

    quantized: QuantizedWeights

    def __init__(self, matrix: QuantizedWeights, bias_O: torch.Tensor | None = None, rounds: bool = False) -> None:
        self.quantized = matrix
        self.bias_O = bias_O
        self.rounds = rounds

    @property
    def weight_OI(self) -> torch.Tensor:
        """The weights expanded, in float32: a new tensor in every call."""
        return self.quantized.dequantized(torch.float32)

    @property
    def inputs(self) -> int:
        return self.quantized.inputs

    @property
    def outputs(self) -> int:
        return self.quantized.outputs

    @property
    def nbytes(self) -> int:
        return self.quantized.nbytes

    def holds(self, weight_OI: torch.Tensor) -> bool:
        return False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        m = self.quantized
        if self.rounds:
            x = rounded_rows(x)
        if torch.compiler.is_compiling() and isinstance(m, QuantizedMatrix):
            # a compiler must not look into it: it would unroll the loop over rows of weights
            y: torch.Tensor = torch.ops.spec_sdk.quantized_linear(
                x, m.codes_OC, m.scale_OG, m.offset_OG, self.bias_O, m.levels
            )
            return y
        return expanded_linear(x, m, self.bias_O)


def rounds_rows(projections: Iterable[Projection]) -> bool:
    """Whether some of these round rows before they multiply them."""
    return any(isinstance(each, QuantizedProjection) and each.rounds for each in projections)


def expanded_linear(
    x: torch.Tensor, matrix: QuantizedWeights, bias_O: torch.Tensor | None, most: int = EXPANDED
) -> torch.Tensor:
    """x [..., I] times the weights, expanded to the dtype of x, at most ``most`` at a time: [..., O]."""
    step = max(1, most // matrix.inputs)
    parts = []
    for first in range(0, matrix.outputs, step):
        rows = slice(first, first + step)
        parts.append(F.linear(x, matrix.dequantized(x.dtype, rows), None if bias_O is None else bias_O[rows]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _quantized_linear(
    x: torch.Tensor,
    codes_OC: torch.Tensor,
    scale_OG: torch.Tensor,
    offset_OG: torch.Tensor | None,
    bias_O: torch.Tensor | None,
    levels: list[int] | None,
) -> torch.Tensor:
    matrix = QuantizedMatrix(codes_OC, scale_OG, offset_OG, levels=None if levels is None else tuple(levels))
    return expanded_linear(x, matrix, bias_O)


def _quantized_linear_shape(x: torch.Tensor, codes_OC: torch.Tensor, *others: Any) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], codes_OC.shape[0])


_OPERATIONS: Any = torch.library.Library("spec_sdk", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS.define(
    "quantized_linear(Tensor x, Tensor codes, Tensor scale, Tensor? offset, Tensor? bias, int[]? levels) -> Tensor"
)
_OPERATIONS.impl("quantized_linear", _quantized_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk::quantized_linear", _quantized_linear_shape, lib=_OPERATIONS)
