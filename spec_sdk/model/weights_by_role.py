"""What those who make parts of blocks ask a checkpoint for, on the device, by what weights are for."""

from __future__ import annotations

from typing import Protocol

import torch

from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedMatrix


class WeightsByRole(Protocol):
    """A checkpoint's weights on the device."""

    ops: Ops
    dtype: torch.dtype

    def has(self, role: str, layer: int) -> bool:
        """Whether this layer has such weights."""

    def read(self, role: str, layer: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor: ...

    def read_if_any(self, role: str, layer: int) -> torch.Tensor | None:
        """None for a layer without such weights."""

    def embedding(self, role: str = "embedding") -> Embedding:
        """What tokens look up."""

    def fused(self, layer: int, *roles: str, expert: int = 0) -> torch.Tensor:
        """A layer's tensors of these roles, one below the other."""

    def quantized(self, roles: tuple[str, ...], layer: int = 0, expert: int = 0) -> QuantizedMatrix | None:
        """The same in few bits; None where they are not, or not in one form."""

    def projection(
        self, layer: int, *roles: str, bias_O: torch.Tensor | None = None, expert: int = 0
    ) -> Projection: ...

    def biased_projection(self, layer: int, *roles: str, expert: int = 0) -> Projection: ...
