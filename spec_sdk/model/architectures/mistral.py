"""Mistral: no biases, and in its first versions a sliding window in every layer; Ministral's in those of a list."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, windows_by_type


def _read_config(fields: Fields) -> ModelConfig:
    window = fields.size_or_none("sliding_window", 4096)
    windows = windows_by_type(fields, window, [True] * fields.size("num_hidden_layers"))
    return read_llama_like(fields, kv_heads=8, windows=windows)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return {**hf_config(gguf), "sliding_window": gguf.metadata.get("mistral.attention.sliding_window")}


FAMILY = Family(
    model_types=("mistral",),
    gguf_architectures=("mistral",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(rotary_pairs=True), *mlp(), *output()),
)
