"""An embedding as the kernels look its rows up, in whichever form its weights lie."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.side_by_side import SideBySide, tensor_of
from spec_sdk_backends.native.structures import Lookup, Matrix


def entering_lookup(decoder: Decoder) -> Lookup | None:
    """How the kernels look up what enters a decoder: its weights, as long as the embedding holds them. None where they
    cannot.
    """
    made = lookup_of(decoder.embedding)
    if made is not None:
        made.factor = decoder.embedding_scale
    return made


def lookup_of(embedding: Embedding) -> Lookup | None:
    """How the kernels look tokens up; None where they cannot."""
    if type(embedding) not in (Embedding, QuantizedEmbedding):
        return None
    held: Any = embedding.held
    if isinstance(held, SideBySide):
        return Lookup(held.matrix(None), factor=1.0)
    if type(held) is NativeProjection:
        return Lookup(held.matrix, factor=1.0)
    parts = [held.codes_OC, held.scale_OG, held.offset_OG] if isinstance(held, QuantizedMatrix) else [held]
    if not all(part is None or (isinstance(part, torch.Tensor) and part.is_contiguous()) for part in parts):
        return None
    if isinstance(held, QuantizedMatrix):
        places = (None if part is None else part.data_ptr() for part in (*parts, tensor_of(held.levels)))
        return Lookup(Matrix(), None, *places, held.bits, 1.0)
    return Lookup(Matrix(), held.data_ptr(), factor=1.0)


def tokens_of(embedding: Embedding) -> int:
    """How many rows it has."""
    held: Any = embedding.held
    return int(held.shape[0] if isinstance(held, torch.Tensor) else held.outputs)
