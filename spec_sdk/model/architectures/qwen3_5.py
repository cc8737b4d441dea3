"""Qwen 3.5, its text, dense or with a mixture of experts."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output
from spec_sdk.model.mixture import experts, read_experts, shared_expert
from spec_sdk.model.qwen_hybrid import TILED, gguf_qwen_hybrid, read_qwen_hybrid
from spec_sdk.model.recurrent.weights import gated_attention, gated_delta_layers


def read_text(fields: Fields) -> ModelConfig:
    """The configuration of the text model. Raises UserError for impossible values."""
    if fields.text("model_type", "") != "qwen3_5_moe_text":
        return read_qwen_hybrid(fields, kv_heads=4)
    width = fields.size("moe_intermediate_size", 512)
    mixture = read_experts(
        fields,
        count=256,
        per_token=8,
        intermediate_size=width,
        normalized=True,
        shared_intermediate_size=fields.size("shared_expert_intermediate_size", 512),
    )
    # of an MLP that no layer has
    fields = Fields({"intermediate_size": width, **fields.values}, fields.where)
    return read_qwen_hybrid(fields, kv_heads=2, experts=mixture)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    sparse = gguf.metadata.get("general.architecture") == "qwen35moe"
    config = gguf_qwen_hybrid(gguf, "qwen35moe" if sparse else "qwen35", sparse)
    return config | {
        "model_type": "qwen3_5_moe_text" if sparse else "qwen3_5_text",
        TILED: config["linear_num_value_heads"] != config["linear_num_key_heads"],
    }


FAMILY = Family(
    model_types=("qwen3_5_text", "qwen3_5_moe_text"),
    gguf_architectures=("qwen35", "qwen35moe"),
    read_config=read_text,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *gated_attention(attention(minus_one=True)),
        *gated_delta_layers(),
        *mlp(minus_one=True, gguf_norm="post_attention_norm"),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *shared_expert(),
        *output(minus_one=True),
    ),
)
