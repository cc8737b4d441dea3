"""Mixtral: Mistral with a mixture of experts in every layer. llama.cpp files it under ``llama``."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import experts, read_experts


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_experts(
        fields, count=8, per_token=2, intermediate_size=fields.size("intermediate_size"), normalized=True
    )
    window = fields.size_if_any("sliding_window")
    windows = [window] * fields.size("num_hidden_layers")
    return read_llama_like(fields, kv_heads=8, windows=windows, theta=1e6, epsilon=1e-5, experts=mixture)


FAMILY = Family(
    model_types=("mixtral",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(
        *embedding(),
        *attention(rotary_pairs=True),
        *mlp(),
        *experts("block_sparse_moe", gate="w1", up="w3", down="w2"),
        *output(),
    ),
)
