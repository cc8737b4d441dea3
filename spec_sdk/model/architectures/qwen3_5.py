"""Qwen 3.5, its text, dense or with a mixture of experts: three of four layers follow the gated delta rule, the others
have attention with an output gate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import GatedDeltaNets, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import experts, gguf_experts_of, read_experts, shared_expert
from spec_sdk.model.recurrent.settings import layers_of_type
from spec_sdk.model.recurrent.weights import gated_attention, gated_delta_layers

_INTERVAL = 4
_TILED = "linear_value_heads_tiled"


def read_text(fields: Fields) -> ModelConfig:
    """The configuration of the text model. Raises UserError for impossible values."""
    layers = fields.size("num_hidden_layers")
    interval = fields.size("full_attention_interval", _INTERVAL)
    linear = layers_of_type(
        fields, "linear_attention", [layer for layer in range(layers) if (layer + 1) % interval != 0]
    )
    mixture, kv_heads = None, 4
    if fields.text("model_type", "") == "qwen3_5_moe_text":
        kv_heads = 2
        mixture = read_experts(
            fields,
            count=256,
            per_token=8,
            intermediate_size=fields.size("moe_intermediate_size", 512),
            normalized=True,
            shared_intermediate_size=fields.size("shared_expert_intermediate_size", 512),
        )
        # of an MLP that no layer has
        fields = Fields({"intermediate_size": fields.size("moe_intermediate_size", 512), **fields.values}, fields.where)
    if fields.flag("attention_bias", False):
        raise UserError(f"{fields.where}: biases of gated attention (attention_bias) are not supported")
    config = read_llama_like(
        fields, kv_heads=kv_heads, head_dim=256, qk_norm=True, partial_rotary=0.25, experts=mixture
    )
    return replace(config, attention_gate=True, recurrent=_delta_nets(fields, linear))


def _delta_nets(fields: Fields, layers: tuple[int, ...]) -> GatedDeltaNets | None:
    if not layers:
        return None
    key_heads = fields.size("linear_num_key_heads", 16)
    value_heads = fields.size("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise UserError(
            f"{fields.where}: linear_num_value_heads is {value_heads}, which {key_heads} key heads do not share evenly"
        )
    return GatedDeltaNets(
        layers,
        tokens=fields.size("linear_conv_kernel_dim", 4),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        tiled=fields.flag(_TILED, False),
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    architecture = "qwen35moe" if gguf.metadata.get("general.architecture") == "qwen35moe" else "qwen35"
    meta, sparse = Fields(gguf.metadata, gguf.where), architecture == "qwen35moe"
    config = hf_config(gguf, computes_experts=sparse, partial_rotary=True)
    layers = config["num_hidden_layers"] - meta.count(f"{architecture}.nextn_predict_layers", 0)
    value_heads = meta.size(f"{architecture}.ssm.time_step_rank")
    key_heads = meta.size(f"{architecture}.ssm.group_count")
    return (
        config
        | (_gguf_experts(gguf, architecture) if sparse else {})
        | {
            "model_type": "qwen3_5_moe_text" if sparse else "qwen3_5_text",
            "num_hidden_layers": layers,
            "layer_types": _layer_types(gguf, architecture, layers),
            "linear_conv_kernel_dim": meta.size(f"{architecture}.ssm.conv_kernel"),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": meta.size(f"{architecture}.ssm.state_size"),
            "linear_value_head_dim": meta.size(f"{architecture}.ssm.inner_size") // value_heads,
            _TILED: value_heads != key_heads,
        }
    )


def _gguf_experts(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    shared = "blk.0.ffn_gate_shexp.weight"
    if shared not in gguf.tensors:
        raise UserError(f"{gguf.where}: tensor '{shared}' is missing")
    return gguf_experts_of(gguf, architecture) | {"shared_expert_intermediate_size": gguf.shapes[shared][0]}


def _layer_types(gguf: GGUFFile, architecture: str, layers: int) -> list[str]:
    key = f"{architecture}.attention.recurrent_layers"
    said = gguf.metadata.get(key)
    if said is None:
        interval = Fields(gguf.metadata, gguf.where).size(f"{architecture}.full_attention_interval", _INTERVAL)
        said = [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(said, list) or len(said) < layers:
        raise UserError(f"{gguf.where}: {key} does not say of each of {layers} layers whether it is recurrent")
    # prediction modules come behind the layers
    return ["linear_attention" if each else "full_attention" for each in said[:layers]]


FAMILY = Family(
    model_types=("qwen3_5_text", "qwen3_5_moe_text"),
    gguf_architectures=("qwen35", "qwen35moe"),
    read_config=read_text,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *gated_attention(attention(minus_one=True)),
        *gated_delta_layers(),
        *mlp(minus_one=True, gguf_norm="post_attention_norm"),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *shared_expert(),
        *output(minus_one=True),
    ),
)
