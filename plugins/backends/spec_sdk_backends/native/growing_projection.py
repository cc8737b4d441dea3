"""A matrix in panels that gets further outputs: an output head's rows of the tokens of a text.

They come one by one, so they are written where the last panel has room. It lies in common memory: what lives as long as
a request keeps none of the large pages that weights share.

Legend: I inputs, K rows, P panels of outputs, S steps of inputs, C outputs of a panel, D inputs of a step.
"""

from __future__ import annotations

import torch

from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.panels import BYTES, OUTPUTS, lay_rows
from spec_sdk_backends.native.products import NativeProjection


class GrowingProjection(NativeProjection):
    """Without any output at first. One that was added to stays what it was, and is not added to again."""

    def __init__(self, inputs: int, dtype: torch.dtype) -> None:
        depth = BYTES // dtype.itemsize
        self._hold(torch.zeros(0, -(-inputs // depth), OUTPUTS, depth, dtype=dtype), 0, inputs, None)

    @property
    def panels_PSCD(self) -> torch.Tensor:
        """Those of the outputs, and those that there is room for: zeros."""
        return self._weight_OI

    def with_rows(self, weight_KI: torch.Tensor) -> GrowingProjection:
        """The same with these outputs behind its own."""
        panels_PSCD, K = self.panels_PSCD, len(weight_KI)
        P, needed = len(panels_PSCD), -(-(self.outputs + K) // OUTPUTS)
        if needed > P:
            # twice as many, so that few copies are made
            wider_PSCD = panels_PSCD.new_zeros(max(needed, 2 * P), *panels_PSCD.shape[1:])
            wider_PSCD[:P] = panels_PSCD
            panels_PSCD = wider_PSCD
        lay_rows(weight_KI, panels_PSCD, self.outputs, library())
        return self.of(panels_PSCD, self.outputs + K, self.inputs, None)
