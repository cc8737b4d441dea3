"""gpt-oss: attention sinks, a window in every other layer, and a mixture of experts with biases. arXiv:2508.10925."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import gguf_layer_types, hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, sinks, windows_by_type
from spec_sdk.model.mixture import biased_experts, gguf_experts_of, read_experts
from spec_sdk.model.rope_fields import with_rope
from spec_sdk.ops.feed_forward import SWIGLU_GAIN, SWIGLU_LIMIT

_GGUF = "gpt-oss"
_THETA = 150000.0
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ACTIVATION = {"swiglu_alpha": SWIGLU_GAIN, "swiglu_limit": SWIGLU_LIMIT}


def _read_config(fields: Fields) -> ModelConfig:
    for key, computed in _ACTIVATION.items():
        if fields.positive(key, computed) != computed:
            raise UserError(f"{fields.where}: {key} {fields.get(key)} is not supported, only {computed}")
    fields = with_rope(fields, _YARN)
    window, layers = fields.size_or_none("sliding_window", 128), fields.size("num_hidden_layers")
    bias = fields.flag("attention_bias", True)
    mixture = read_experts(
        fields, count=128, per_token=4, intermediate_size=fields.size("intermediate_size"), normalized=True
    )
    if mixture is None:
        raise UserError(f"{fields.where}: a gpt-oss without experts is not supported")
    config = read_llama_like(
        fields,
        kv_heads=8,
        head_dim=64,
        qkv_bias=bias,
        o_bias=bias,
        windows=windows_by_type(fields, window, [layer % 2 == 0 for layer in range(layers)]),
        theta=_THETA,
        epsilon=1e-5,
        experts=replace(mixture, biased=True),
    )
    return replace(config, attention_sinks=True, activation="clamped_swiglu")


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config, meta = hf_config(gguf, computes_experts=True), Fields(gguf.metadata, gguf.where)
    mixture = gguf_experts_of(gguf, _GGUF)
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        # of which GGUF files say nothing
        rope = rope | {"truncate": False}
    return config | {
        "model_type": "gpt_oss",
        "intermediate_size": mixture["moe_intermediate_size"],
        "num_local_experts": mixture["num_experts"],
        "num_experts_per_tok": mixture["num_experts_per_tok"],
        "layer_types": gguf_layer_types(gguf, _GGUF, config["num_hidden_layers"], interval=2),
        "sliding_window": meta.size(f"{_GGUF}.attention.sliding_window"),
        "rope_parameters": rope,
    }


FAMILY = Family(
    model_types=("gpt_oss",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *sinks(),
        *mlp(gguf_norm="post_attention_norm"),
        *biased_experts(),
        *output(),
    ),
)
