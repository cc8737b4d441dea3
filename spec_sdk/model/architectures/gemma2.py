"""Gemma 2: norms before and after each sub-layer, soft-capped scores and logits, a window in every other layer.

arXiv:2408.00118, §2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gemma_like import GELU_TANH, gemma_weights, pre_attention_scalar, read_gemma_like, softcap
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import windows_by_type

_WINDOW, _SCORE_CAP, _LOGIT_CAP = 4096, 50.0, 30.0
_LAYERS_OF_27B = 46
_COMPUTES = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")


def _read_config(fields: Fields) -> ModelConfig:
    window = fields.size_or_none("sliding_window", _WINDOW)
    slides = [layer % 2 == 0 for layer in range(fields.size("num_hidden_layers"))]
    config = read_gemma_like(
        fields,
        fields.text("hidden_activation", GELU_TANH),
        kv_heads=4,
        windows=windows_by_type(fields, window, slides),
        computes=_COMPUTES,
    )
    return replace(
        config,
        attention_softcap=softcap(fields, "attn_logit_softcapping", _SCORE_CAP),
        logit_softcap=softcap(fields, "final_logit_softcapping", _LOGIT_CAP),
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config, meta = hf_config(gguf), Fields(gguf.metadata, gguf.where)
    del config["hidden_act"]
    return config | {
        "hidden_activation": GELU_TANH,
        "sliding_window": meta.size("gemma2.attention.sliding_window", _WINDOW),
        "attn_logit_softcapping": meta.positive("gemma2.attn_logit_softcapping", _SCORE_CAP),
        "final_logit_softcapping": meta.positive("gemma2.final_logit_softcapping", _LOGIT_CAP),
        "query_pre_attn_scalar": pre_attention_scalar(gguf, _LAYERS_OF_27B, config["head_dim"]),
    }


FAMILY = Family(
    model_types=("gemma2",),
    gguf_architectures=("gemma2",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=gemma_weights(output_norms=True),
)
