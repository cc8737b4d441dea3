"""An embedding as the kernels look its rows up, in whichever form its weights lie."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.ops.embedding import Embedding, QuantizedEmbedding
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.side_by_side import SideBySide
from spec_sdk_backends.native.structures import Lookup, Matrix


def plain_lookup(decoder: Decoder, *gains_M: torch.Tensor) -> Lookup | None:
    """How the kernels look tokens up for a decoder that enters its rows as they are, and whose logits are what its
    output head gives: its weights, as long as the embedding holds them. None for another decoder, or one of which a
    norm, ``gains_M``, is wider than its weights.
    """
    if decoder.embedding_scale != 1.0 or decoder.config.logit_softcap is not None:
        return None
    if any(gain_M.dtype != decoder.dtype for gain_M in gains_M):
        return None
    return lookup_of(decoder.embedding)


def lookup_of(embedding: Embedding) -> Lookup | None:
    """How the kernels look tokens up; None where they cannot."""
    if type(embedding) not in (Embedding, QuantizedEmbedding):
        return None
    held: Any = embedding.held
    if isinstance(held, SideBySide):
        return Lookup(held.matrix(None))
    if type(held) is NativeProjection:
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
