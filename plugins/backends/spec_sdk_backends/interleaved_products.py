"""Linear layers on a GPU whose weights stay in few bits.

Legend: K rows, I inputs, O outputs, S parts of the inputs.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.quantized_linear import QuantizedProjection, expanded_linear
from spec_sdk_backends.few_rows import ROWS, FewRows, product_of_few_rows
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.tree_attention import DTYPES

EXPANDED = 1 << 27
"""Weights that are expanded at a time for passes of more rows: 256 MiB in 16 bits."""


class InterleavedProjection(QuantizedProjection):
    """One matrix, multiplied as it is with up to 64 rows. For more it is expanded, and the library multiplies."""

    quantized: InterleavedWeights

    def __init__(self, weights: InterleavedWeights, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(weights, None if bias_O is None else bias_O.contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x_1KI = x.reshape(1, -1, x.shape[-1])
        rows = x_1KI.shape[1]
        if x.requires_grad or x.dtype not in DTYPES or not 0 < rows < ROWS.stop:
            return expanded_linear(x, self.quantized, self.bias_O, EXPANDED)
        part_S1KO = product_of_few_rows(FewRows(x_1KI), self)
        y_KO = part_S1KO[0, 0] if len(part_S1KO) == 1 else part_S1KO[:, 0].sum(0).to(x.dtype)
        return y_KO.view(*x.shape[:-1], self.outputs)
