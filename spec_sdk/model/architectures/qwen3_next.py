"""Qwen 3 Next: a mixture of experts in every layer, or all but some."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output
from spec_sdk.model.mixture import experts, read_experts, shared_expert
from spec_sdk.model.qwen_hybrid import gguf_qwen_hybrid, read_qwen_hybrid
from spec_sdk.model.recurrent.weights import gated_attention, gated_delta_layers_by_key_head

_GGUF = "qwen3next"


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_experts(
        fields,
        count=512,
        per_token=10,
        intermediate_size=fields.size("moe_intermediate_size", 512),
        normalized=fields.flag("norm_topk_prob", True),
        shared_intermediate_size=fields.size("shared_expert_intermediate_size", 512),
    )
    return read_qwen_hybrid(fields, kv_heads=2, experts=mixture)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return gguf_qwen_hybrid(gguf, _GGUF, sparse=True) | {"model_type": "qwen3_next"}


FAMILY = Family(
    model_types=("qwen3_next",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *gated_attention(attention(minus_one=True)),
        *gated_delta_layers_by_key_head(),
        *mlp(minus_one=True, gguf_norm="post_attention_norm"),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *shared_expert(),
        *output(minus_one=True),
    ),
)
