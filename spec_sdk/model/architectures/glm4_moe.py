"""GLM 4.5 to 4.7: half of a head is rotated; a mixture of DeepSeek-V3's kind behind the first layers."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek_mixture import COUNTED_AS, deepseek_experts, gguf_deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config, layers_of
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import refuse_sections
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like

_GGUF = "glm4moe"


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_deepseek_experts(fields, count=128, per_token=8, width=1408, shared=1, first=1, normalized=True)
    return read_llama_like(
        fields,
        kv_heads=8,
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm=fields.flag("use_qk_norm", False),
        epsilon=1e-5,
        partial_rotary=0.5,
        experts=mixture,
        computes=(COUNTED_AS,),
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    refuse_sections(gguf, _GGUF)
    return (
        hf_config(gguf, computes_experts=True, partial_rotary=True)
        | gguf_deepseek_experts(gguf, _GGUF)
        | {
            "model_type": "glm4_moe",
            "num_hidden_layers": layers_of(gguf, _GGUF),
            "use_qk_norm": "blk.0.attn_q_norm.weight" in gguf.tensors,
        }
    )


FAMILY = Family(
    model_types=("glm4_moe",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *mlp(gguf_norm="post_attention_norm"),
        *deepseek_experts(),
        *output(),
    ),
)
