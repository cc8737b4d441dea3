"""What the kernels are given of a block's attention to latents.

Legend: H query heads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.latent_projections import LatentProjections
from spec_sdk.ops.linear import ProjectionStack
from spec_sdk_backends.native.feed_forward import is_native, matrix_of
from spec_sdk_backends.native.structures import Gain, Latents, Matrix


def unknown_latents(config: ModelConfig, of: LatentProjections, dtype: torch.dtype) -> str | None:
    """What of it the native kernels do not run beside rows in ``dtype``; None if they run it."""
    latent = config.latent
    assert latent is not None
    if not all(Gain.suits(gain, dtype) for gain in (of.query_norm, of.latent_norm_R)):
        return "norms of latents in another dtype than its weights"
    if latent.v_head_dim > latent.width:
        return f"values of {latent.v_head_dim} dims, more than of a latent"
    return None if all(map(is_native, of.projections)) else "linear layers of another kind"


def latents_of(config: ModelConfig, of: LatentProjections | None, dtype: torch.dtype) -> Any:
    """A pointer to a block's, for as long as ``of`` lives; None for a block without."""
    if of is None:
        return None
    latent = config.latent
    assert latent is not None
    made = Latents(
        matrix_of(of.latents),
        Matrix() if of.queries is None else matrix_of(of.queries),
        _of_heads(of.keys),
        _of_heads(of.values),
        Gain.of(of.query_norm, dtype),
        Gain.of(of.latent_norm_R, dtype),
        latent.kv_lora_rank,
        latent.qk_nope_head_dim,
        latent.qk_rope_head_dim,
        latent.v_head_dim,
    )
    return ctypes.pointer(made)


def numbers_beside_queries(config: ModelConfig, block: BlockWeights) -> int:
    """How many numbers of a row the kernels have room for in a block that attends to latents."""
    latent, of = config.latent, block.latents
    if latent is None or of is None:
        return 0
    queries = 0 if of.queries is None else of.queries.outputs
    return block.qkv.outputs + latent.width + config.num_heads * latent.width + queries


def _of_heads(stack: ProjectionStack) -> Any:
    return (Matrix * len(stack))(*(matrix_of(stack[head]) for head in range(len(stack))))
