"""An embedding as the kernels look its rows up, in whichever form its weights lie."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.side_by_side import SideBySide
from spec_sdk_backends.native.structures import Lookup, Matrix


def lookup_of(embedding: Embedding) -> Lookup | None:
    """How the kernels look tokens up; None where they cannot."""
    held: Any = embedding.held
    if isinstance(held, SideBySide):
        return Lookup(held.matrix(None))
    if isinstance(held, NativeProjection):
        return Lookup(held.matrix)
    parts = [held.codes_OC, held.scale_OG, held.offset_OG] if isinstance(held, QuantizedMatrix) else [held]
    if not all(part is None or (isinstance(part, torch.Tensor) and part.is_contiguous()) for part in parts):
        return None
    if isinstance(held, QuantizedMatrix):
        return Lookup(Matrix(), None, *(None if part is None else part.data_ptr() for part in parts), held.bits)
    return Lookup(Matrix(), held.data_ptr())


def tokens_of(embedding: Embedding) -> int:
    """How many rows it has."""
    held: Any = embedding.held
    return int(held.shape[0] if isinstance(held, torch.Tensor) else held.outputs)
