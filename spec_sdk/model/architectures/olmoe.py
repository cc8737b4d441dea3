"""OLMoE: a mixture of experts in every layer, and norms of all heads of Q, and of K, together. arXiv:2409.02060."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import experts, gguf_experts_of, read_experts


def _read_config(fields: Fields) -> ModelConfig:
    if fields.get("clip_qkv") is not None:
        raise UserError(f"{fields.where}: clipped Q, K and V (clip_qkv) are not supported")
    mixture = read_experts(
        fields,
        count=64,
        per_token=8,
        intermediate_size=fields.size("intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )
    bias = fields.flag("attention_bias", False)
    config = read_llama_like(fields, qkv_bias=bias, o_bias=bias, qk_norm=True, epsilon=1e-5, experts=mixture)
    return replace(config, wide_qk_norm=True)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    mixture = gguf_experts_of(gguf, "olmoe")
    # as llama.cpp computes it, and as the released models are
    return hf_config(gguf, computes_experts=True) | mixture | {"norm_topk_prob": False}


FAMILY = Family(
    model_types=("olmoe",),
    gguf_architectures=("olmoe",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(wide_qk_norm=True),
        *mlp(),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *output(),
    ),
)
