"""What tokens look up: rows of a matrix, in floating point or in few bits.

Legend: V vocabulary, M model dim, B requests, N rows of a request, K = B*N rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from spec_sdk.ops.attention import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedWeights


class Embedding:
    """A matrix [V, M], whose dtype is that of the hidden states."""

    def __init__(self, weight_VM: torch.Tensor) -> None:
        self._weight_VM: torch.Tensor | None = weight_VM
        self._head: Projection | None = None
        self._device, self._dtype, self._width = weight_VM.device, weight_VM.dtype, weight_VM.shape[1]

    @property
    def weight_VM(self) -> torch.Tensor:
        """The matrix; a copy where it is kept in few bits, or in the form of the output head."""
        return self._held().weight_OI if self._weight_VM is None else self._weight_VM

    @property
    def held(self) -> torch.Tensor | Projection | QuantizedWeights:
        """What holds the matrix: itself [V, M], the output head, or weights in few bits."""
        return self._held() if self._weight_VM is None else self._weight_VM

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def width(self) -> int:
        """M."""
        return self._width

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        matrix_VM = self._weight_VM
        return self._held().nbytes if matrix_VM is None else matrix_VM.numel() * matrix_VM.element_size()

    def __call__(self, token_BN: torch.Tensor) -> torch.Tensor:
        """[B, N] → [B, N, M]."""
        if self._weight_VM is None:
            return self._held().rows(token_BN.flatten()).view(*token_BN.shape, -1)
        return F.embedding(token_BN, self._weight_VM)

    def tied_head(self, ops: Ops) -> Projection:
        """The output head of the same weights. From then on it alone holds them, if it gives its rows."""
        if self._weight_VM is None:
            return self._held()
        head = ops.projection(self._weight_VM)
        if head.gives_rows:
            self._head, self._weight_VM = head, None
        return head

    def shared_by(self, projection: Projection) -> bool:
        """Whether the weights of a linear layer are this very memory."""
        return projection is self._head if self._weight_VM is None else projection.holds(self._weight_VM)

    def _held(self) -> Projection:
        assert self._head is not None
        return self._head


class QuantizedEmbedding(Embedding):
    """The same for a matrix in few bits: rows are expanded to ``dtype`` as they are looked up."""

    matrix: QuantizedWeights

    def __init__(self, matrix: QuantizedWeights, dtype: torch.dtype) -> None:
        self.matrix = matrix
        self._dtype = dtype

    @property
    def weight_VM(self) -> torch.Tensor:
        return self.matrix.dequantized(self._dtype)

    @property
    def held(self) -> QuantizedWeights:
        return self.matrix

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def width(self) -> int:
        return self.matrix.inputs

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    def __call__(self, token_BN: torch.Tensor) -> torch.Tensor:
        return self.matrix.dequantized(self._dtype, token_BN.flatten()).view(*token_BN.shape, -1)

    def tied_head(self, ops: Ops) -> Projection:
        head = ops.quantized_projection(self.matrix.plain())
        # the backend's layout serves both, so that the matrix is in memory once
        self.matrix = head.quantized or self.matrix
        return head

    def shared_by(self, projection: Projection) -> bool:
        return projection.quantized is self.matrix
