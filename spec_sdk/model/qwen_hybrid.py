"""What Qwen 3 Next and Qwen 3.5 share: three of four layers follow the gated delta rule, the others have attention with
an output gate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, GatedDeltaNets, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import hf_config, layers_of
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import read_llama_like
from spec_sdk.model.mixture import gguf_experts_of
from spec_sdk.model.recurrent.settings import layers_of_type

TILED = "linear_value_heads_tiled"
"""Where config.json of a converted GGUF file says so (:class:`~spec_sdk.model.config.GatedDeltaNets`)."""
_INTERVAL = 4


def read_qwen_hybrid(fields: Fields, *, kv_heads: int, experts: Experts | None = None) -> ModelConfig:
    """The configuration of the text model. Raises UserError for impossible values."""
    layers = fields.size("num_hidden_layers")
    interval = fields.size("full_attention_interval", _INTERVAL)
    linear = layers_of_type(
        fields, "linear_attention", [layer for layer in range(layers) if (layer + 1) % interval != 0]
    )
    if fields.flag("attention_bias", False):
        raise UserError(f"{fields.where}: biases of gated attention (attention_bias) are not supported")
    config = read_llama_like(
        fields, kv_heads=kv_heads, head_dim=256, qk_norm=True, partial_rotary=0.25, experts=experts
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
        tiled=fields.flag(TILED, False),
    )


def gguf_qwen_hybrid(gguf: GGUFFile, architecture: str, sparse: bool) -> dict[str, Any]:
    """What the config.json of a GGUF file's model would say. ``sparse``: all layers have experts.

    Raises UserError for what the decoder cannot run or the file lacks.
    """
    meta = Fields(gguf.metadata, gguf.where)
    config = hf_config(gguf, computes_experts=sparse, partial_rotary=True)
    layers = layers_of(gguf, architecture)
    value_heads = meta.size(f"{architecture}.ssm.time_step_rank")
    return (
        config
        | (_gguf_experts(gguf, architecture) if sparse else {})
        | {
            "num_hidden_layers": layers,
            "layer_types": _layer_types(gguf, architecture, layers),
            "linear_conv_kernel_dim": meta.size(f"{architecture}.ssm.conv_kernel"),
            "linear_num_key_heads": meta.size(f"{architecture}.ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": meta.size(f"{architecture}.ssm.state_size"),
            "linear_value_head_dim": meta.size(f"{architecture}.ssm.inner_size") // value_heads,
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
