"""Gemma 3, its text: norms of Q and K; of six layers, five have a window and rotary positions of their own.

``gemma3`` checkpoints hold a vision tower besides, which is left out. arXiv:2503.19786, §2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.model.config import ModelConfig, Rope
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gemma_like import GELU_TANH, gemma_weights, pre_attention_scalar, read_gemma_like, softcap
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import windows_by_type
from spec_sdk.model.rope_fields import read_rope, ropes_by_type, rotated_dims
from spec_sdk.model.text_settings import text_fields

_WINDOW, _PATTERN, _THETA, _LOCAL_THETA = 4096, 6, 1e6, 1e4
_LAYERS_OF_27B = 62
_COMPUTES = ("query_pre_attn_scalar", "final_logit_softcapping")
_SIZES = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
}
"""Released checkpoints leave out what has transformers' default."""


def _read_config(fields: Fields) -> ModelConfig:
    if fields.text("model_type", "") == "gemma3_text":
        return _read_text(Fields({**_SIZES, **fields.values}, fields.where))
    text = text_fields(fields)
    config = _read_text(Fields({**_SIZES, **text.values}, text.where))
    return replace(config, prefix="language_model.")


def _read_text(fields: Fields) -> ModelConfig:
    window = fields.size_or_none("sliding_window", _WINDOW) or fields.size("max_position_embeddings")
    pattern = fields.size("sliding_window_pattern", _PATTERN)
    slides = [(layer + 1) % pattern != 0 for layer in range(fields.size("num_hidden_layers"))]
    theta, local = fields.positive("rope_theta", _THETA), fields.positive("rope_local_base_freq", _LOCAL_THETA)
    plain, windowed = ropes_by_type(fields, theta, local)
    config = read_gemma_like(
        plain,
        fields.text("hidden_activation", GELU_TANH),
        kv_heads=4,
        qk_norm=True,
        windows=windows_by_type(fields, window, slides),
        computes=_COMPUTES,
    )
    cap = softcap(fields, "final_logit_softcapping", None)
    rope = read_rope(windowed, rotated_dims(windowed, config.head_dim))
    return replace(config, windowed_rope=Rope(*rope), logit_softcap=cap)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config, meta = hf_config(gguf), Fields(gguf.metadata, gguf.where)
    del config["hidden_act"]
    local = {"rope_type": "default", "rope_theta": meta.positive("gemma3.rope.freq_base_swa", _LOCAL_THETA)}
    window = gguf.metadata.get("gemma3.attention.sliding_window")
    if not window:
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    return config | {
        "model_type": "gemma3_text",
        "hidden_activation": GELU_TANH,
        "sliding_window": window or None,
        "final_logit_softcapping": gguf.metadata.get("gemma3.final_logit_softcapping") or None,
        "query_pre_attn_scalar": pre_attention_scalar(gguf, _LAYERS_OF_27B, config["head_dim"]),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


FAMILY = Family(
    model_types=("gemma3", "gemma3_text"),
    gguf_architectures=("gemma3",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=gemma_weights(output_norms=True),
)
