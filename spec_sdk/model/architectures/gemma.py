"""Gemma 1: heads of a size of their own, tied and scaled embeddings, a GELU in the MLP."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gemma_like import GELU_TANH, gemma_weights, read_gemma_like
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile


def _read_config(fields: Fields) -> ModelConfig:
    activation = fields.text("hidden_activation", fields.text("hidden_act", GELU_TANH))
    # the first checkpoints say gelu and mean its approximation by tanh
    activation = GELU_TANH if activation == "gelu" else activation
    return read_gemma_like(fields, activation, kv_heads=16, output_norms=False)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return {**hf_config(gguf), "hidden_act": GELU_TANH}


FAMILY = Family(
    model_types=("gemma",),
    gguf_architectures=("gemma",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=gemma_weights(output_norms=False),
)
