"""GLM 4.7 Flash: attention to latents, and a mixture of DeepSeek-V3's kind behind the first layer."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek2_gguf import read_deepseek2
from spec_sdk.model.deepseek_mixture import COUNTED_AS, deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.latent_like import latent_attention, read_latent_like
from spec_sdk.model.llama_like import embedding, mlp, output


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_deepseek_experts(
        fields, count=64, per_token=4, width=1536, shared=1, first=1, normalized=True, scale=1.8
    )
    return read_latent_like(
        fields,
        q_lora_rank=768,
        qk_nope_head_dim=192,
        v_head_dim=256,
        epsilon=1e-5,
        experts=mixture,
        computes=(COUNTED_AS,),
    )


FAMILY = Family(
    model_types=("glm4_moe_lite",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=read_deepseek2,
    weights=(*embedding(), *latent_attention(), *mlp(), *deepseek_experts(), *output()),
)
