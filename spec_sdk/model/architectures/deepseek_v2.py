"""DeepSeek-V2 Lite and its like: attention to latents, and a mixture of experts chosen by probability behind the first
layers. arXiv:2405.04434.
"""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek2_gguf import read_deepseek2
from spec_sdk.model.deepseek_mixture import COUNTED_AS, check_choice, deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.latent_like import latent_attention, read_latent_like
from spec_sdk.model.llama_like import embedding, mlp, output

_CHOICE = {"topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False}


def _read_config(fields: Fields) -> ModelConfig:
    check_choice(fields, _CHOICE)
    mixture = read_deepseek_experts(
        # a choice among all has no groups
        Fields({**fields.values, "n_group": 1, "topk_group": 1}, fields.where),
        count=64,
        per_token=fields.size("num_experts_per_tok"),
        width=1407,
        shared=2,
        first=0,
        normalized=False,
        scored_by="softmax",
    )
    return read_latent_like(fields, experts=mixture, computes=(COUNTED_AS,))


FAMILY = Family(
    model_types=("deepseek_v2",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=read_deepseek2,
    weights=(*embedding(), *latent_attention(), *mlp(), *deepseek_experts(), *output()),
)
