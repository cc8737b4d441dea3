"""From a checkpoint's weights, by their roles, to what attention to latents is made of.

Legend: H query heads, R dims of a latent, P dims of a head's key without rotary positions, O outputs, I inputs of a
head.
"""

from __future__ import annotations

from spec_sdk.model.config import LatentAttention, ModelConfig
from spec_sdk.model.latent_projections import LatentProjections
from spec_sdk.model.weights_by_role import WeightsByRole
from spec_sdk.ops.linear import Projection, ProjectionStack, SeparateProjections


def latent_parts(
    config: ModelConfig, latent: LatentAttention, weights: WeightsByRole, layer: int
) -> tuple[Projection, LatentProjections, Projection]:
    """What makes Q or its latent, the rest, and the output projection of a layer."""
    if latent.k_b_transposed:
        keys = _of_heads(config.num_heads, weights, layer, "latent_key")
    else:
        key_HPR = weights.read("latent_key", layer).view(config.num_heads, latent.qk_nope_head_dim, latent.kv_lora_rank)
        keys = weights.ops.projections(key_HPR.transpose(1, 2).contiguous())
    has_latent = latent.q_lora_rank is not None
    of_latents = LatentProjections(
        weights.biased_projection(layer, "latent"),
        weights.read("latent_norm", layer),
        weights.read("query_norm", layer) if has_latent else None,
        weights.projection(layer, "query_up") if has_latent else None,
        keys,
        _of_heads(config.num_heads, weights, layer, "latent_value"),
    )
    query = weights.biased_projection(layer, "query_down") if has_latent else weights.projection(layer, "q")
    return query, of_latents, weights.biased_projection(layer, "o")


def _of_heads(heads: int, weights: WeightsByRole, layer: int, role: str) -> ProjectionStack:
    """Of every head its rows of a matrix, in few bits where they are stored so."""
    matrix = weights.quantized((role,), layer)
    if matrix is None:
        whole_HOI = weights.read(role, layer)
        return weights.ops.projections(whole_HOI.view(heads, -1, whole_HOI.shape[1]))
    height = matrix.outputs // heads
    of_heads = (matrix.rows(slice(head * height, (head + 1) * height)) for head in range(heads))
    return SeparateProjections([weights.ops.quantized_projection(each) for each in of_heads])
