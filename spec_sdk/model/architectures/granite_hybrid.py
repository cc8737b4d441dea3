"""Granite 4 (``granitemoehybrid``): most layers are Mamba-2's, the others have attention; the small ones have attention
alone. The MLP is called shared, and lies beside a mixture of experts in the larger ones.

GGUF files have those without state spaces as ``granite``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.granite_like import gguf_multipliers, read_granite_like
from spec_sdk.model.llama_like import attention, embedding, mlp, one_gate_up, output
from spec_sdk.model.mixture import experts_in_two, gguf_experts, read_experts, shared_expert
from spec_sdk.model.recurrent.settings import attending_layers
from spec_sdk.model.recurrent.space_settings import gguf_state_spaces, read_state_spaces
from spec_sdk.model.recurrent.weights import attention_alone, state_spaces
from spec_sdk.model.weight_table import SHARED_MLP, Packing, Weight

_MLP = "model.layers.{layer}.shared_mlp"
_GGUF = "granitehybrid"
_ATTENTION, _STATE_SPACE = {"attention", "full_attention"}, {"mamba", "linear_attention"}


def _read_config(fields: Fields) -> ModelConfig:
    layers, kinds = fields.size("num_hidden_layers"), fields.get("layer_types")
    kinds = ["mamba"] * layers if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise UserError(f"{fields.where}: layer_types must list the types of {layers} layers")
    if unknown := sorted(set(map(str, kinds)) - _ATTENTION - _STATE_SPACE):
        raise UserError(f"{fields.where}: layer_types has '{unknown[0]}', which is not supported")
    spaces = tuple(layer for layer, kind in enumerate(kinds) if kind in _STATE_SPACE)
    shared, mixture = fields.size("shared_intermediate_size", 1024), None
    if fields.number("num_local_experts", 8):
        mixture = read_experts(
            fields,
            count=8,
            per_token=2,
            intermediate_size=fields.size("intermediate_size"),
            normalized=True,
            shared_intermediate_size=shared,
        )
        mixture = mixture and replace(mixture, shared_gated=False)
    values = fields.values if mixture else {**fields.values, "intermediate_size": shared, "num_local_experts": 0}
    config = read_granite_like(Fields(values, fields.where), experts=mixture)
    if spaces:
        inner = int(fields.positive("mamba_expand", 2) * fields.size("hidden_size"))
        config = replace(config, recurrent=read_state_spaces(fields, spaces, inner))
    if fields.text("position_embedding_type", "nope") == "rope":
        return config
    return replace(config, unrotated=tuple(range(layers)))


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    attends, alike = attending_layers(gguf, _GGUF)
    finetuned = f"{_GGUF}.rope.scaling.finetuned"
    rotated, alike.metadata = bool(gguf.metadata.get(finetuned, True)), {**alike.metadata, finetuned: True}
    config, spaces = hf_config(alike, computes_experts=True), gguf_state_spaces(gguf, _GGUF)
    mixture = gguf_experts(gguf, _GGUF)
    shared = f"blk.0.ffn_{'gate_shexp' if mixture else 'gate'}.weight"
    if shared not in gguf.shapes:
        raise UserError(f"{gguf.where}: tensor '{shared}' is missing")
    return (
        config
        | gguf_multipliers(alike, _GGUF)
        | spaces
        | {
            "model_type": "granitemoehybrid",
            "attention_bias": f"blk.{attends.index(True)}.attn_q.bias" in gguf.tensors,
            "layer_types": ["attention" if each else "mamba" for each in attends],
            "position_embedding_type": "rope" if rotated else "nope",
            "intermediate_size": mixture.get("moe_intermediate_size", config["intermediate_size"]),
            "num_local_experts": mixture.get("num_experts", 0),
            "num_experts_per_tok": mixture.get("num_experts_per_tok", 0),
            "shared_intermediate_size": gguf.shapes[shared][0],
            "mamba_expand": spaces["mamba_n_heads"] * spaces["mamba_d_head"] / config["hidden_size"],
        }
    )


def _renamed(row: Weight) -> Weight:
    return replace(row, packings=(Packing(f"{_MLP}.output_linear.weight"),)) if row.role == "down" else row


def _dense() -> Iterator[Weight]:
    """The MLP of models without a mixture, which GGUF files have gate and up of apart where there are state spaces."""
    return map(_renamed, one_gate_up(mlp(), f"{_MLP}.input_linear.weight"))


def _shared() -> Iterator[Weight]:
    """The same beside a mixture."""
    both = SHARED_MLP, SHARED_MLP
    for row in shared_expert():
        if row.role == "shared_down":
            yield replace(row, packings=(Packing(f"{_MLP}.output_linear.weight"),))
        elif row.role in ("shared_gate", "shared_up"):
            part = 0 if row.role == "shared_gate" else 1
            yield replace(row, packings=(Packing(f"{_MLP}.input_linear.weight", both, part),))


FAMILY = Family(
    model_types=("granitemoehybrid",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention_alone(attention(rotary_pairs=True)),
        *state_spaces(),
        *(replace(row, gguf_packing=None) for row in _dense()),
        *experts_in_two("block_sparse_moe"),
        *_shared(),
        *output(),
    ),
)
