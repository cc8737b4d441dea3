"""Qwen 3 with a mixture of experts: a norm on every head of Q and K, and no shared expert."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import experts, gguf_experts_of, read_experts


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_experts(
        fields,
        count=128,
        per_token=8,
        intermediate_size=fields.size("moe_intermediate_size", 768),
        normalized=fields.flag("norm_topk_prob", False),
    )
    bias = fields.flag("attention_bias", False)
    window = fields.size("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    windows = [window] * fields.size("num_hidden_layers")
    return read_llama_like(
        fields, kv_heads=4, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=windows, experts=mixture
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    mixture = gguf_experts_of(gguf, "qwen3moe")
    # as llama.cpp computes it, and as the released models are
    return hf_config(gguf, computes_experts=True) | {"model_type": "qwen3_moe", "norm_topk_prob": True} | mixture


FAMILY = Family(
    model_types=("qwen3_moe",),
    gguf_architectures=("qwen3moe",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *mlp(),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *output(),
    ),
)
