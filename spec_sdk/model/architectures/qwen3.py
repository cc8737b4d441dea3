"""Qwen 3: a norm on every head of Q and K, heads of a size of their own, no biases unless config.json asks for them."""

from __future__ import annotations

from spec_sdk.model.architectures.qwen2 import sliding_windows
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like


def _read_config(fields: Fields) -> ModelConfig:
    bias, windows = fields.flag("attention_bias", False), sliding_windows(fields)
    return read_llama_like(fields, kv_heads=32, head_dim=128, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=windows)


FAMILY = Family(
    model_types=("qwen3",),
    gguf_architectures=("qwen3",),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(*embedding(), *attention(), *mlp(), *output()),
)
