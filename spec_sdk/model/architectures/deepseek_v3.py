"""DeepSeek-V3, R1 and V3.1, Kimi K2, Moonlight: attention to latents, and a mixture of experts behind the first layers.
arXiv:2412.19437.
"""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek2_gguf import ARCHITECTURE, read_deepseek2
from spec_sdk.model.deepseek_mixture import COUNTED_AS, check_choice, deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.latent_like import latent_attention, read_latent_like
from spec_sdk.model.llama_like import embedding, mlp, output

_CHOICE = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def _read_config(fields: Fields) -> ModelConfig:
    check_choice(fields, _CHOICE)
    mixture = read_deepseek_experts(
        fields,
        count=256,
        per_token=8,
        width=2048,
        shared=1,
        first=3,
        normalized=True,
        scale=2.5,
        groups=8,
        groups_of_token=4,
    )
    return read_latent_like(fields, experts=mixture, computes=(COUNTED_AS,))


FAMILY = Family(
    model_types=("deepseek_v3", "kimi_k2"),
    gguf_architectures=(ARCHITECTURE,),
    read_config=_read_config,
    read_gguf=read_deepseek2,
    weights=(*embedding(), *latent_attention(), *mlp(), *deepseek_experts(), *output()),
)
