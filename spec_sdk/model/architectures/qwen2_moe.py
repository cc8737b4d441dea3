"""Qwen 1.5 and 2 with a mixture of experts, and one expert besides that every token has."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, windows_by_type
from spec_sdk.model.mixture import experts, gguf_experts_of, read_experts, shared_expert


def _windows(fields: Fields) -> list[int | None]:
    """Unlike in Qwen2 it is every other one of the first ``max_window_layers`` layers that may have one."""
    layers, first_full = fields.size("num_hidden_layers"), fields.number("max_window_layers", 28)
    slides = fields.flag("use_sliding_window", False)
    window = fields.size("sliding_window", 4096) if slides else None
    return windows_by_type(fields, window, [(layer + 1) % 2 != 0 and layer < first_full for layer in range(layers)])


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_experts(
        fields,
        count=60,
        per_token=4,
        intermediate_size=fields.size("moe_intermediate_size", 1408),
        normalized=fields.flag("norm_topk_prob", False),
        shared_intermediate_size=fields.size("shared_expert_intermediate_size", 5632),
    )
    bias = fields.flag("qkv_bias", True)
    return read_llama_like(fields, kv_heads=16, qkv_bias=bias, windows=_windows(fields), experts=mixture)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config = hf_config(gguf, computes_experts=True) | {"model_type": "qwen2_moe"}
    mixture = gguf_experts_of(gguf, "qwen2moe")
    shared = "blk.0.ffn_gate_shexp.weight"
    if shared not in gguf.tensors:
        raise UserError(f"{gguf.where}: tensor '{shared}' is missing")
    size = gguf.shapes[shared][0]
    return config | mixture | {"shared_expert_intermediate_size": size, "norm_topk_prob": False}


FAMILY = Family(
    model_types=("qwen2_moe",),
    gguf_architectures=("qwen2moe",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *mlp(),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *shared_expert(),
        *output(),
    ),
)
