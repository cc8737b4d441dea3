"""OLMo 2 and 3: norms after the sub-layers, none before; norms of all heads of Q, and of K, together.

OLMo 3 also has a window in three layers of four, whose rotary positions are never stretched. arXiv:2501.00656, §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spec_sdk.model.config import ModelConfig, Rope
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import gguf_layer_types, hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, output_norms, read_llama_like, windows_by_type
from spec_sdk.model.rope_fields import read_rope, ropes_by_type, rotated_dims

_GGUF, _THETA, _WINDOW = "olmo2", 500000.0, 4096


def _read_config(fields: Fields) -> ModelConfig:
    if fields.text("model_type", "") == "olmo2":
        return _read(fields, 10000.0)
    slides = [(layer + 1) % 4 != 0 for layer in range(fields.size("num_hidden_layers"))]
    window = fields.size_or_none("sliding_window", _WINDOW)
    theta = fields.positive("rope_theta", _THETA)
    plain, windowed = ropes_by_type(fields, theta, theta)
    config = _read(plain, theta, windows=windows_by_type(fields, window, slides))
    rope = read_rope(windowed, rotated_dims(windowed, config.head_dim), _THETA)
    return replace(config, windowed_rope=Rope(*rope))


def _read(fields: Fields, theta: float, windows: Sequence[int | None] = ()) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    config = read_llama_like(
        fields, qkv_bias=bias, o_bias=bias, qk_norm=True, theta=theta, epsilon=1e-5, windows=windows
    )
    return replace(config, output_norms=True, wide_qk_norm=True)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config, meta = hf_config(gguf), Fields(gguf.metadata, gguf.where)
    window = meta.get(f"{_GGUF}.attention.sliding_window")
    if not window:
        return config
    full = config["rope_parameters"]
    return config | {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": gguf_layer_types(gguf, _GGUF, config["num_hidden_layers"]),
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": full["rope_theta"]},
        },
    }


FAMILY = Family(
    model_types=("olmo2", "olmo3"),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(normed=False, wide_qk_norm=True),
        *mlp(norm=None),
        *output_norms(),
        *output(),
    ),
)
