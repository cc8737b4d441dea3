"""ERNIE 4.5, the dense ones: a Llama whose rotary pairs are side by side."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like


def _read_config(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias", False)
    return read_llama_like(
        fields,
        kv_heads=2,
        head_dim=128,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
        theta=500000.0,
        epsilon=1e-5,
        rotary_neighbours=True,
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config = hf_config(gguf)
    return config | {"use_bias": config["attention_bias"]}


FAMILY = Family(
    model_types=("ernie4_5",),
    gguf_architectures=("ernie4_5",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(), *mlp(), *output()),
)
