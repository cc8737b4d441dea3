"""Linear layers on a GPU whose weights stay in few bits.

Legend: K rows, I inputs, O outputs, S parts of the inputs.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.quantized_linear import QuantizedProjection, expanded_linear
from spec_sdk_backends.few_rows import ROWS, FewRows, product_of_few_rows
from spec_sdk_backends.interleaved_weights import InterleavedWeights
from spec_sdk_backends.tree_attention import DTYPES

AT_ONCE = ROWS.stop - 1
"""Rows that the kernel takes."""
MOST_ROWS = 4 * AT_ONCE
"""For so many, weights are rather read again, in few bits, than written in 16 and read once (by bytes; not timed)."""
MOST_IN_FLOAT32 = 16
"""On a GPU: products of more have no room in shared memory, nor are they what anybody has a GPU for."""
EXPANDED = 1 << 27
"""Weights that are expanded at a time for passes of more rows: 256 MiB in 16 bits."""


class InterleavedProjection(QuantizedProjection):
    """One matrix, multiplied as it is with up to MOST_ROWS. For more it is expanded, and the library multiplies."""

    quantized: InterleavedWeights

    def __init__(self, weights: InterleavedWeights, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(weights, None if bias_O is None else bias_O.contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x_1KI = x.reshape(1, -1, x.shape[-1])
        most = MOST_IN_FLOAT32 if x.is_cuda and x.dtype == torch.float32 else MOST_ROWS
        if x.requires_grad or x.dtype not in DTYPES or not 0 < x_1KI.shape[1] <= most:
            return expanded_linear(x, self.quantized, self.bias_O, EXPANDED)
        products = [self._of_few(some_1KI) for some_1KI in torch.split(x_1KI, AT_ONCE, 1)]
        y_KO = products[0] if len(products) == 1 else torch.cat(products)
        return y_KO.view(*x.shape[:-1], self.outputs)

    def _of_few(self, x_1KI: torch.Tensor) -> torch.Tensor:
        """[K, O], the sum of its parts."""
        part_S1KO = product_of_few_rows(FewRows(x_1KI), self)
        return part_S1KO[0, 0] if len(part_S1KO) == 1 else part_S1KO[:, 0].sum(0).to(x_1KI.dtype)
