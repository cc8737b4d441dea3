"""SmolLM3: a Llama in which every fourth layer has no rotary positions. arXiv:2501.18795 (RNoPE)."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, windows_by_type

_INTERVAL = 4


def _read_config(fields: Fields) -> ModelConfig:
    bias, layers = fields.flag("attention_bias", False), fields.size("num_hidden_layers")
    unrotated = _unrotated(fields, layers)
    window = fields.size_if_any("sliding_window")
    slides = fields.flag("use_sliding_window", False)
    return read_llama_like(
        fields,
        kv_heads=4,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        tied=True,
        theta=2e6,
        windows=windows_by_type(fields, window, [slides and layer in unrotated for layer in range(layers)]),
        unrotated=unrotated,
        computes=("no_rope_layers",),
    )


def _unrotated(fields: Fields, layers: int) -> list[int]:
    """Raises UserError for a list that does not say 0 or 1 of every layer."""
    listed = fields.get("no_rope_layers")
    if listed is None:
        interval = fields.size("no_rope_layer_interval", _INTERVAL)
        return [layer for layer in range(layers) if (layer + 1) % interval == 0]
    # 1: the layer has rotary positions, whatever the key is called
    if not isinstance(listed, list) or len(listed) < layers or not all(value in (0, 1) for value in listed):
        raise UserError(f"{fields.where}: no_rope_layers must say 0 or 1 of each of {layers} layers")
    return [layer for layer in range(layers) if not listed[layer]]


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    # llama.cpp knows the interval by the architecture
    return hf_config(gguf) | {"no_rope_layer_interval": _INTERVAL}


FAMILY = Family(
    model_types=("smollm3",),
    gguf_architectures=("smollm3",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(rotary_pairs=True), *mlp(), *output()),
)
