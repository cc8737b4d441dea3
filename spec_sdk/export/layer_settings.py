"""config.json of a head's decoder layers, in the words that all versions of transformers, vLLM and SGLang read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.rope_fields import SPELLINGS

_KEPT = (
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
)
"""Taken over as they stand."""
_ROPE_THETA = "rope_theta"


def layer_settings(config: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """The layers that ``config`` describes. ``values``: the config.json that it was read from.

    What depends on defaults there is written out: a head's epsilon, its rotary base, its heads' width.
    """
    bias = config.qkv_bias or config.o_bias
    written = {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_context,
        "vocab_size": config.vocab_size,
        "attention_bias": bias,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
    }
    kept = {key: values[key] for key in _KEPT if values.get(key) is not None}
    return {**written, **kept, **_rotary(config, values)}


def _rotary(config: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Base and scaling three ways: ``rope_theta`` and ``rope_scaling``, and ``rope_parameters`` of transformers 5."""
    stretched: Mapping[str, Any] = next((values[key] for key in SPELLINGS if values.get(key)), {})
    kind = stretched.get("rope_type", stretched.get("type", "default"))
    parameters = {**stretched, "rope_type": kind, _ROPE_THETA: config.rope_theta}
    parameters.pop("type", None)
    rotary: dict[str, Any] = {_ROPE_THETA: config.rope_theta, "rope_parameters": parameters}
    if kind != "default":
        rotary["rope_scaling"] = {key: value for key, value in parameters.items() if key != _ROPE_THETA}
    return rotary
