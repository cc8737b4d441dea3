"""Youtu: attention to latents in a dense model."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek2_gguf import read_deepseek2
from spec_sdk.model.family import Family
from spec_sdk.model.latent_like import latent_attention, read_latent_like
from spec_sdk.model.llama_like import embedding, mlp, output


def _read_config(fields: Fields) -> ModelConfig:
    return read_latent_like(fields, tied=True)


FAMILY = Family(
    model_types=("youtu",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=read_deepseek2,
    weights=(*embedding(), *latent_attention(), *mlp(), *output()),
)
