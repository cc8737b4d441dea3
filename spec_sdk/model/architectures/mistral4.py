"""Mistral Small 4: attention to latents, and a mixture of experts in every layer.

Its queries grow with positions beyond the context that it was first trained for (Llama 4's attention temperature). That
is not computed, so that is the longest context.
"""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek_mixture import COUNTED_AS, deepseek_experts, gguf_deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.latent_like import gguf_latent_like, latent_attention, read_latent_like
from spec_sdk.model.llama_like import embedding, mlp, output
from spec_sdk.model.rope_fields import TEMPERATURE, with_rope

_GGUF = "mistral4"
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    TEMPERATURE: 0.1,
}


def _read_config(fields: Fields) -> ModelConfig:
    fields = with_rope(fields, _YARN)
    mixture = read_deepseek_experts(
        fields, count=128, per_token=4, width=2048, shared=1, first=0, normalized=True, scored_by="softmax"
    )
    return read_latent_like(
        fields, kv_lora_rank=256, q_lora_rank=1024, qk_nope_head_dim=64, experts=mixture, computes=(COUNTED_AS,)
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return (
        gguf_latent_like(gguf, _GGUF)
        | gguf_deepseek_experts(gguf, _GGUF, "softmax", grouped=True)
        | {"model_type": "mistral4"}
    )


FAMILY = Family(
    model_types=("mistral4",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *latent_attention(), *mlp(), *deepseek_experts(published_as_one=True), *output()),
)
