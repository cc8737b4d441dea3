"""GLM 4 of 9B and 32B (``glm``, ``glm4``): half of a head is rotated, pairs side by side; gate and up in one matrix.

``glm4`` (0414 and Z1) also normalizes what its sub-layers give, as Gemma 2 does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, gain, mlp, one_gate_up, output, read_llama_like

_EPSILON = 1.5625e-07


def _read_config(fields: Fields) -> ModelConfig:
    config = read_llama_like(
        fields,
        kv_heads=2,
        head_dim=128,
        qkv_bias=fields.flag("attention_bias", True),
        epsilon=_EPSILON,
        partial_rotary=0.5,
        rotary_neighbours=True,
    )
    return replace(config, output_norms=config.architecture == "glm4")


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    if any(gguf.metadata.get("glm4.rope.dimension_sections") or ()):
        # llama.cpp's converter puts the rows of these in another order
        raise UserError(f"{gguf.where}: rotary positions of several kinds (rope.dimension_sections) are not supported")
    return hf_config(gguf, partial_rotary=True)


def _has_output_norms(config: ModelConfig) -> bool:
    return config.output_norms


_HF, _GGUF = "model.layers.{layer}", "blk.{layer}"

FAMILY = Family(
    model_types=("glm", "glm4"),
    gguf_architectures=("glm4",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        gain(
            "attention_output_norm",
            f"{_HF}.post_self_attn_layernorm",
            f"{_GGUF}.post_attention_norm",
            present=_has_output_norms,
        ),
        *one_gate_up(mlp()),
        gain("mlp_output_norm", f"{_HF}.post_mlp_layernorm", f"{_GGUF}.post_ffw_norm", present=_has_output_norms),
        *output(),
    ),
)
