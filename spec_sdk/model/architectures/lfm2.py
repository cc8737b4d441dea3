"""LFM2, dense: most layers are short convolutions, the others have attention. Liquid AI 2025, arXiv:2511.23404."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig, ShortConvolutions
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.recurrent.settings import layers_of_type
from spec_sdk.model.recurrent.weights import attention_alone, short_convolutions
from spec_sdk.model.weight_table import Weight

_NAMES = {
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "input_layernorm": "operator_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "model.norm.": "model.embedding_norm.",
}


def _read_config(fields: Fields) -> ModelConfig:
    layers, values = fields.size("num_hidden_layers"), fields.values
    attending = fields.get("full_attn_idxs")
    attending = range(layers) if attending is None else attending
    if not isinstance(attending, list | range) or not all(layer in range(layers) for layer in attending):
        raise UserError(f"{fields.where}: full_attn_idxs is {attending!r}, not a list of layers below {layers}")
    convolved = layers_of_type(fields, "conv", [layer for layer in range(layers) if layer not in attending])
    if fields.flag("conv_bias", False):
        raise UserError(f"{fields.where}: biases of convolutions (conv_bias) are not supported")
    read = {
        "intermediate_size": _mlp_size(fields),
        "rms_norm_eps": fields.positive("norm_eps", 1e-5),
        "tie_word_embeddings": fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True)),
    }
    config = read_llama_like(Fields({**values, **read}, fields.where), kv_heads=8, qk_norm=True, theta=1e6)
    return replace(
        config,
        recurrent=ShortConvolutions(convolved, fields.size("conv_L_cache", 3)) if convolved else None,
    )


def _mlp_size(fields: Fields) -> int:
    """Two thirds of what config.json says, in whole multiples, unless it says that it is to be taken as it is."""
    size = fields.size("block_ff_dim", fields.size("intermediate_size", 12288))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    multiple = fields.size("block_multiple_of", 256)
    size = int(fields.positive("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    return -(-size // multiple) * multiple


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    heads = gguf.metadata.get("lfm2.attention.head_count_kv")
    if not isinstance(heads, list) or not all(isinstance(count, int) for count in heads):
        raise UserError(f"{gguf.where}: lfm2.attention.head_count_kv does not list the key-value heads of every layer")
    same = copy.copy(gguf)
    same.metadata = {**gguf.metadata, "lfm2.attention.head_count_kv": max(heads)}
    config = hf_config(same)
    layers = config["num_hidden_layers"]
    if len(heads) != layers or set(heads) - {0, max(heads)}:
        raise UserError(f"{gguf.where}: lfm2.attention.head_count_kv differs between layers with attention")
    return config | {
        "model_type": "lfm2",
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": Fields(gguf.metadata, gguf.where).size("lfm2.shortconv.l_cache"),
    }


def _renamed(row: Weight) -> Weight:
    name = row.name
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return replace(row, name=name, gguf=row.gguf.replace("output_norm.", "token_embd_norm."))


FAMILY = Family(
    model_types=("lfm2",),
    gguf_architectures=("lfm2",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=tuple(
        map(
            _renamed,
            (
                *embedding(),
                *attention_alone(attention()),
                *short_convolutions(),
                *mlp(norm="ffn_norm"),
                *output(),
            ),
        )
    ),
)
