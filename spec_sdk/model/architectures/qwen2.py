"""Qwen 2 and 2.5: biases on Q, K and V; a sliding window that is mostly off."""

from __future__ import annotations

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like


def sliding_window(fields: Fields) -> int | None:
    """The window of a Qwen model, if any of its layers has one. Raises UserError for layers of an unknown type."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
        if unknown:
            raise UserError(f"{fields.where}: layer_types has '{unknown[0]}', which is not supported")
        slides = "sliding_attention" in kinds
    else:
        slides = fields.number("max_window_layers", 28) < fields.size("num_hidden_layers")
    if not (fields.flag("use_sliding_window", False) and slides):
        return None
    return fields.size_or_none("sliding_window", 4096)


def _read_config(fields: Fields) -> ModelConfig:
    return read_llama_like(fields, kv_heads=32, qkv_bias=True, window=sliding_window(fields))


FAMILY = Family(
    model_types=("qwen2",),
    gguf_architectures=("qwen2",),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(*embedding(), *attention(), *mlp(), *output()),
)
