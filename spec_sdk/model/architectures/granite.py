"""Granite 3: a Llama with four multipliers (:mod:`spec_sdk.model.granite_like`)."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.granite_like import gguf_multipliers, read_granite_like
from spec_sdk.model.llama_like import attention, embedding, mlp, output


def _read_config(fields: Fields) -> ModelConfig:
    return read_granite_like(fields, mlp_bias=fields.flag("mlp_bias", False))


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    biased = "blk.0.ffn_gate.bias" in gguf.tensors
    return hf_config(gguf) | gguf_multipliers(gguf, "granite") | {"mlp_bias": biased}


FAMILY = Family(
    model_types=("granite",),
    gguf_architectures=("granite",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(rotary_pairs=True), *mlp(), *output()),
)
