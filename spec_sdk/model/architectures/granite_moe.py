"""Granite 3 with a mixture of experts in every layer (``granitemoe``): gate and up of all experts are one tensor."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.granite_like import gguf_multipliers, read_granite_like
from spec_sdk.model.llama_like import attention, embedding, mlp, output
from spec_sdk.model.mixture import experts_in_two, gguf_experts, read_experts


def _read_config(fields: Fields) -> ModelConfig:
    mixture = read_experts(
        fields, count=8, per_token=2, intermediate_size=fields.size("intermediate_size"), normalized=True
    )
    return read_granite_like(fields, experts=mixture)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    mixture = gguf_experts(gguf, "granitemoe")
    count, used = mixture.get("num_experts"), mixture.get("num_experts_per_tok")
    return (
        hf_config(gguf, computes_experts=True)
        | gguf_multipliers(gguf, "granitemoe")
        | {"num_local_experts": count, "num_experts_per_tok": used}
    )


FAMILY = Family(
    model_types=("granitemoe",),
    gguf_architectures=("granitemoe",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(rotary_pairs=True),
        *mlp(),
        *experts_in_two("block_sparse_moe"),
        *output(),
    ),
)
