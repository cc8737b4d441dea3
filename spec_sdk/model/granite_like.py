"""What the Granite families share: four multipliers, and how the decoder computes them.

With residuals scaled by r a block computes h + r·f(norm(h)). The decoder has g = h / r in the place of h, and adds
f(norm(g)), where the norm's epsilon is that of h over r². So blocks are a Llama's, and what is scaled are the embedding
(``embedding_multiplier`` / r), scores (``attention_multiplier``) and logits (1 / ``logits_scaling``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import read_llama_like

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_GGUF: Mapping[str, str] = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def read_granite_like(fields: Fields, *, mlp_bias: bool = False, experts: Experts | None = None) -> ModelConfig:
    """The configuration of a Granite. Raises UserError for what the decoder does not compute and impossible values."""
    bias = fields.flag("attention_bias", False)
    config = read_llama_like(
        fields, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias, experts=experts, computes=MULTIPLIERS
    )
    embedding, residual, attention, logits = (fields.positive(key, 1.0) for key in MULTIPLIERS)
    return replace(
        config,
        embedding_scale=embedding / residual,
        rounds_embedding_scale=False,
        attention_scale=attention,
        logit_scale=1.0 / logits,
        state_scale=residual,
        rms_norm_eps=config.rms_norm_eps / residual**2,
    )


def gguf_multipliers(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    """What config.json would say of them. Raises UserError for a file whose model has no rotary positions."""
    meta = Fields(gguf.metadata, gguf.where)
    if not meta.flag(f"{architecture}.rope.scaling.finetuned", True):
        raise UserError(f"{gguf.where}: a Granite without rotary positions is not supported")
    found = {name: meta.get(f"{architecture}.{key}") for key, name in _GGUF.items()}
    if not found["attention_multiplier"]:
        # to llama.cpp the usual scale, and to transformers 1
        width = meta.size(f"{architecture}.embedding_length") // meta.size(f"{architecture}.attention.head_count")
        found["attention_multiplier"] = meta.size(f"{architecture}.attention.key_length", width) ** -0.5
    return {name: value for name, value in found.items() if value}
