"""dots.llm1: norms of Q and K, and a mixture of DeepSeek-V3's kind behind the first layers."""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek_mixture import COUNTED_AS, deepseek_experts, gguf_deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like, windows_by_type


def _read_config(fields: Fields) -> ModelConfig:
    layers, first_sliding = fields.size("num_hidden_layers"), fields.count("max_window_layers", 62)
    window = fields.size_or_none("sliding_window", 4096)
    bias = fields.flag("attention_bias", False)
    # what transformers has no default of must be there
    sizes = {key: fields.count(key) for key in (COUNTED_AS, "num_experts_per_tok", "n_shared_experts")}
    mixture = read_deepseek_experts(
        fields,
        count=sizes[COUNTED_AS],
        per_token=sizes["num_experts_per_tok"],
        width=1408,
        shared=sizes["n_shared_experts"],
        first=0,
        normalized=False,
    )
    return read_llama_like(
        fields,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        windows=windows_by_type(fields, window, [layer >= first_sliding for layer in range(layers)]),
        experts=mixture,
        computes=(COUNTED_AS,),
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    mixture = gguf_deepseek_experts(gguf, "dots1")
    # llama.cpp knows no window here
    return hf_config(gguf, computes_experts=True) | mixture | {"sliding_window": None}


FAMILY = Family(
    model_types=("dots1",),
    gguf_architectures=("dots1",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(), *mlp(), *deepseek_experts(), *output()),
)
