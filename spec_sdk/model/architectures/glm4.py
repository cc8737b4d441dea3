"""GLM 4 of 9B and 32B (``glm``, ``glm4``): half of a head is rotated, pairs side by side; gate and up in one matrix.

``glm4`` (0414 and Z1) also normalizes what its sub-layers give, as Gemma 2 does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import refuse_sections
from spec_sdk.model.llama_like import attention, embedding, mlp, one_gate_up, output, output_norms, read_llama_like

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
    refuse_sections(gguf, "glm4")
    return hf_config(gguf, partial_rotary=True)


FAMILY = Family(
    model_types=("glm", "glm4"),
    gguf_architectures=("glm4",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *one_gate_up(mlp()),
        *output_norms("post_self_attn_layernorm", "post_mlp_layernorm", present=lambda config: config.output_norms),
        *output(),
    ),
)
