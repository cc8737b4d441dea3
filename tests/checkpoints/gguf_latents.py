"""What is different in tiny GGUF files of models that attend to latents."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from spec_sdk.model.latent_like import K_B_TRANSPOSED

LATENTS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu")
WITH_EXPERTS = LATENTS[:-1]
BY_PROBABILITY = ("deepseek_v2", "mistral4")
"""Whose experts are chosen so."""


def add_latents(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any], apart: bool) -> None:
    """Sizes of heads and YaRN. ``apart``: what makes K and V are tensors of their own, as in files since 2025."""
    rank, head_dim = config.kv_lora_rank, config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if apart:
        writer.add_key_length(rank + config.qk_rope_head_dim)
        writer.add_value_length(rank)
        writer.add_key_length_mla(head_dim)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(config.v_head_dim)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if config.model_type == "mistral4":
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        writer.add_attn_temperature_length(rope["original_max_position_embeddings"])
    if config.model_type == "youtu":
        writer.add_leading_dense_block_count(config.num_hidden_layers)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(0)


def stored_by(config: Any, apart: bool) -> dict[str, Any]:
    """What the config.json of the file's model says of it."""
    return {K_B_TRANSPOSED: True} if config.model_type in LATENTS and apart else {}


def latent_values(name: str, values: np.ndarray, config: Any, apart: bool) -> np.ndarray:
    """A tensor by its Hugging Face name as these files have it."""
    if not name.endswith(("k_b_proj.weight", "v_b_proj.weight")):
        return values
    by_head = values.reshape(config.num_attention_heads, -1, values.shape[-1])
    return by_head.swapaxes(1, 2) if apart and name.endswith("k_b_proj.weight") else by_head


def keys_and_values(parts: list[np.ndarray]) -> np.ndarray:
    """Both in the one tensor of files of 2024, head by head."""
    whole = np.concatenate(parts, 1)
    return whole.reshape(-1, whole.shape[-1])
