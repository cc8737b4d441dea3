"""What LFM2 and LFM2 with experts share: most layers are short convolutions, the others have attention. Liquid AI 2025,
arXiv:2511.23404.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig, ShortConvolutions
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.recurrent.settings import attending_layers, layers_of_type
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
    ".mlp.": ".feed_forward.",
    "model.norm.": "model.embedding_norm.",
}


def read_lfm2_like(
    fields: Fields,
    *,
    convolved: Sequence[int],
    intermediate_size: int,
    experts: Experts | None = None,
    computes: Collection[str] = (),
) -> ModelConfig:
    """The configuration of a model of which these layers are ``convolved`` unless ``layer_types`` says others.
    ``computes``: as :func:`~spec_sdk.model.llama_like.read_llama_like` has it. Raises UserError for impossible values.
    """
    convolved = layers_of_type(fields, "conv", convolved)
    if fields.flag("conv_bias", False):
        raise UserError(f"{fields.where}: biases of convolutions (conv_bias) are not supported")
    read = {
        "intermediate_size": intermediate_size,
        "rms_norm_eps": fields.positive("norm_eps", 1e-5),
        "tie_word_embeddings": fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True)),
    }
    config = read_llama_like(
        Fields({**fields.values, **read}, fields.where),
        kv_heads=8,
        qk_norm=True,
        theta=1e6,
        experts=experts,
        computes=computes,
    )
    recurrent = ShortConvolutions(tuple(convolved), fields.size("conv_L_cache", 3)) if convolved else None
    return replace(config, recurrent=recurrent)


def gguf_lfm2_like(gguf: GGUFFile, architecture: str, computes_experts: bool = False) -> dict[str, Any]:
    """What the config.json of a GGUF file's model would say, but for experts: which layers are convolutions follows
    from their key-value heads. Raises UserError for a file that does not list these.
    """
    attends, alike = attending_layers(gguf, architecture)
    config = hf_config(alike, computes_experts)
    return config | {
        "norm_eps": config["rms_norm_eps"],
        "layer_types": ["full_attention" if each else "conv" for each in attends],
        "conv_L_cache": Fields(gguf.metadata, gguf.where).size(f"{architecture}.shortconv.l_cache"),
    }


def lfm2_weights(experts: Iterable[Weight] = ()) -> tuple[Weight, ...]:
    """The table of weights. ``experts``: of a mixture under the module ``mlp``, which is called otherwise here."""
    rows = (
        *embedding(),
        *attention_alone(attention()),
        *short_convolutions(),
        *mlp(norm="ffn_norm"),
        *experts,
        *output(),
    )
    return tuple(map(_renamed, rows))


def _renamed(row: Weight) -> Weight:
    packings = tuple(replace(packing, name=_name(packing.name)) for packing in row.packings)
    gguf = row.gguf.replace("output_norm.", "token_embd_norm.")
    return replace(row, name=_name(row.name), gguf=gguf, packings=packings)


def _name(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name
