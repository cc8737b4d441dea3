"""What llama.cpp's converter does to models with recurrent layers."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

LFM2 = ("lfm2", "lfm2_moe")
GRANITE, FALCON, NEMOTRON = "granitemoehybrid", "falcon_h1", "nemotron_h"
STATE_SPACE_FLOATS = ("ssm_a", "ssm_d", "ssm_norm.weight")
QWEN35 = {"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
QWENS = {"qwen3_next": "qwen3next", **QWEN35}
DELTA_SIZES: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
"""Widths that GGML's blocks of 32 divide."""
TILED = {**DELTA_SIZES, "linear_num_value_heads": 6}
"""The same where the converter puts value heads into another order."""


def kv_heads(config: Any) -> int | list[int]:
    """Of each layer where the file says it so."""
    if config.model_type not in (*LFM2, GRANITE, NEMOTRON):
        return int(config.num_key_value_heads)
    return [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types]


def norm_epsilon(config: Any) -> float:
    """Of its norms."""
    key = {NEMOTRON: "layer_norm_epsilon", **dict.fromkeys(LFM2, "norm_eps")}.get(config.model_type, "rms_norm_eps")
    return float(getattr(config, key))


def nemotron_architecture(config: Any) -> str:
    """What a file is called, by whether it has experts."""
    return "nemotron_h_moe" if "moe" in config.layers_block_type else "nemotron_h"


def feed_forward_length(config: Any) -> int | list[int]:
    """That of experts, or of MLPs; of each layer where the file says it so."""
    if config.model_type == NEMOTRON:
        widths = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
        return [widths.get(kind, 0) for kind in config.layers_block_type]
    shared = config.model_type == GRANITE and not config.num_local_experts
    return int(config.shared_intermediate_size if shared else config.intermediate_size)


def add_recurrent(writer: gguf.GGUFWriter, config: Any) -> None:
    """Settings of the recurrent layers, of a model that has any."""
    if config.model_type in LFM2:
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if config.model_type in QWENS:
        architecture = QWENS[config.model_type]
        values = config.linear_num_value_heads
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(config.linear_value_head_dim * values)
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array(f"{architecture}.attention.recurrent_layers", recurrent)
        writer.add_full_attention_interval(4)
    if config.model_type in (GRANITE, FALCON):
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    if config.model_type == GRANITE:
        writer.add_rope_scaling_finetuned(False)
        if config.num_local_experts:
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.model_type == NEMOTRON:
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.ssm_state_size)
        writer.add_ssm_group_count(config.n_groups)
        writer.add_ssm_time_step_rank(config.mamba_num_heads)
        writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
        writer.add_rope_scaling_finetuned(False)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        if "moe" in config.layers_block_type:
            writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
            writer.add_expert_shared_count(config.n_shared_experts)
            writer.add_expert_weights_norm(config.norm_topk_prob)
            writer.add_expert_weights_scale(config.routed_scaling_factor)
            writer.add_expert_group_count(config.n_group)
    if config.model_type in QWEN35:
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def recurrent_values(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """A tensor by its Hugging Face name, as the file has it."""
    values = multiplied(name, values, config) if config.model_type == FALCON else values
    if config.model_type in (GRANITE, FALCON, NEMOTRON):
        if name.endswith(("A_log", ".D")):
            return (-np.exp(values) if name.endswith("A_log") else values)[:, None]
        groups = config.n_groups if config.model_type == NEMOTRON else config.mamba_n_groups
        return values.reshape(groups, -1) if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")) else values
    if config.model_type not in QWENS:
        return values
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return values + 1
    shares_keys = config.linear_num_key_heads != config.linear_num_value_heads
    if config.model_type in QWEN35 and ".linear_attn." in name and shares_keys:
        values = tiled(name, values, config)
    return -np.exp(values) if name.endswith("A_log") else values


def multiplied(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """A tensor of a Falcon H1 by its Hugging Face name, with the multipliers in it, which its file does not name."""
    entering = config.attention_in_multiplier
    by: dict[str, float] = {
        "q_proj": entering,
        "k_proj": entering * config.key_multiplier,
        "v_proj": entering,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
    }
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "in_proj":
        keys = config.mamba_n_groups * config.mamba_d_state
        heights = config.mamba_d_ssm, config.mamba_d_ssm, keys, keys, config.mamba_n_heads
        scales = np.repeat(np.array(config.ssm_multipliers, np.float32), heights)
        return values * (scales * np.float32(config.ssm_in_multiplier))[:, None]
    return values * np.float32(by[part]) if part in by else values


def joined(name: str, parts: list[np.ndarray], config: Any) -> np.ndarray:
    """Tensors that are one in the file, by its name there: of some one below the other in every key head."""
    if not name.endswith("ssm_ba.weight"):
        return np.concatenate(parts)
    rows = [part.reshape(config.linear_num_key_heads, -1, part.shape[1]) for part in parts]
    return np.concatenate(rows, 1).reshape(-1, parts[0].shape[1])


def tiled(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """With value heads that share a key head no longer side by side."""
    V, keys = config.linear_value_head_dim, config.linear_num_key_heads
    first = 2 * keys * config.linear_key_head_dim
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate((values[:first], _tiled_rows(values[first:], keys, V)))
    if "in_proj_z" in name:
        return _tiled_rows(values, keys, V)
    if "out_proj" in name:
        return _tiled_rows(values.T, keys, V).T
    if any(part in name for part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")):
        return _tiled_rows(values, keys, 1)
    return values


def _tiled_rows(rows: np.ndarray, key_heads: int, head_dim: int) -> np.ndarray:
    heads = rows.reshape(key_heads, -1, head_dim, *rows.shape[1:])
    return heads.swapaxes(0, 1).reshape(rows.shape)
