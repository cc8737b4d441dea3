"""Linear layers on the CPU with weights packed once, at load, into the blocks that oneDNN's kernels read.

A plain ``linear`` on a row-major matrix is left to the BLAS library, which for a few rows (a token tree) takes several
times as long as for one row, and repacks the weights in every call or does without. On packed weights a few rows cost
as much as one (benchmarks/packed_projections.py).

Legend: I inputs, O outputs, N rows of all leading dims together.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.ops.linear import Projection


def packed_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x [..., I] times packed weights: [..., O]."""
    x_NI = x.reshape(-1, x.shape[-1])
    # a single row has a kernel of its own, which sums in another order: a token's logits would then depend, in
    # their last bits, on how many tokens they are computed with. Two rows cost what one does
    rows = x_NI if x_NI.shape[0] != 1 else x_NI.expand(2, -1)
    y_NO = torch.ops.mkldnn._linear_pointwise(rows, weight_OI, bias_O, "none", [], "")
    y: torch.Tensor = y_NO[: x_NI.shape[0]].view(*x.shape[:-1], weight_OI.shape[0])
    return y


def _packed_linear_shape(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight_OI.shape[0])


_OPERATIONS: Any = torch.library.Library("spec_sdk_backends", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS.define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_OPERATIONS.impl("packed_linear", packed_linear, "CompositeExplicitAutograd")
torch.library.register_fake("spec_sdk_backends::packed_linear", _packed_linear_shape, lib=_OPERATIONS)


class PackedProjection(Projection):
    """One packed matrix. The plain one is unpacked on demand: to the bit what was packed."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight_OI), bias_O)

    @property
    def weight_OI(self) -> torch.Tensor:
        weight_OI: torch.Tensor = self._weight_OI.to_dense()
        return weight_OI

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            # the packed product has no derivative
            return F.linear(x, self.weight_OI, self.bias_O)
        if not self._weight_OI.is_mkldnn:
            # a stand-in for the weights, whose product is being traced: a compiler must not look into it
            y: torch.Tensor = torch.ops.spec_sdk_backends.packed_linear(x, self._weight_OI, self.bias_O)
            return y
        return packed_linear(x, self._weight_OI, self.bias_O)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine's torch multiplies packed weights of ``dtype``, found by trying."""
    weight_OI, x_NI = torch.eye(8, dtype=dtype), torch.arange(16.0).to(dtype).view(2, 8)
    try:
        return torch.equal(PackedProjection(weight_OI)(x_NI), x_NI)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
