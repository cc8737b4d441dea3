"""Seed-OSS: a Llama with biases on Q, K and V, and wider heads."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like


def _read_config(fields: Fields) -> ModelConfig:
    return read_llama_like(
        fields,
        kv_heads=8,
        head_dim=128,
        qkv_bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


FAMILY = Family(
    model_types=("seed_oss",),
    gguf_architectures=("seed_oss",),
    read_config=_read_config,
    read_gguf=lambda gguf: hf_config(gguf) | {"attention_out_bias": "blk.0.attn_output.bias" in gguf.tensors},
    weights=(*embedding(), *attention(), *mlp(gguf_norm="post_attention_norm"), *output()),
)
