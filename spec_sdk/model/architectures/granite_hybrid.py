"""Granite 4 without state space layers (``granitemoehybrid``: micro, 1B, 350M): a Granite whose MLP is called shared.

GGUF files have them as ``granite``.
"""

from __future__ import annotations

from dataclasses import replace

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.granite_like import read_granite_like
from spec_sdk.model.llama_like import attention, embedding, mlp, one_gate_up, output
from spec_sdk.model.weight_table import Packing, Weight

_MLP = "model.layers.{layer}.shared_mlp"


def _read_config(fields: Fields) -> ModelConfig:
    layers, kinds = fields.size("num_hidden_layers"), fields.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers or set(map(str, kinds)) - {"attention", "full_attention"}:
        raise UserError(f"{fields.where}: layer_types has others than attention, which are not supported")
    if fields.number("num_local_experts", 8):
        raise UserError(f"{fields.where}: mixture of experts (num_local_experts) is not supported in this family")
    shared = fields.size("shared_intermediate_size", 1024)
    config = read_granite_like(Fields({**fields.values, "intermediate_size": shared}, fields.where))
    if fields.text("position_embedding_type", "nope") == "rope":
        return config
    return replace(config, unrotated=tuple(range(layers)))


def _renamed(row: Weight) -> Weight:
    return replace(row, packings=(Packing(f"{_MLP}.output_linear.weight"),)) if row.role == "down" else row


FAMILY = Family(
    model_types=("granitemoehybrid",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(
        *embedding(),
        *attention(),
        *map(_renamed, one_gate_up(mlp(), f"{_MLP}.input_linear.weight")),
        *output(),
    ),
)
