"""Qwen 2 and 2.5: biases on Q, K and V; a sliding window that is mostly off. MiMo 7B is one, with a module beside."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, windows_by_type


def sliding_windows(fields: Fields) -> list[int | None]:
    """The window of every layer of a Qwen model. Raises UserError for layers of an unknown type."""
    layers = fields.size("num_hidden_layers")
    first = fields.number("max_window_layers", 28)
    slides = fields.flag("use_sliding_window", False)
    window = fields.size_or_none("sliding_window", 4096) if slides else None
    return windows_by_type(fields, window, [layer >= first for layer in range(layers)])


def _read_config(fields: Fields) -> ModelConfig:
    return read_llama_like(fields, kv_heads=32, qkv_bias=True, windows=sliding_windows(fields))


FAMILY = Family(
    model_types=("qwen2", "mimo"),
    gguf_architectures=("qwen2",),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(*embedding(), *attention(), *mlp(), *output()),
)
