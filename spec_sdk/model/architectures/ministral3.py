"""Ministral 3, and the text of Mistral Small 3.1 and later: their vision tower is left out.

Ministral's queries grow with positions beyond the context that it was first trained for (Llama 4's attention
temperature). That is not computed, so that is the longest context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import mistral, mistral4
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import growing_queries
from spec_sdk.model.llama_like import read_llama_like
from spec_sdk.model.rope_fields import TEMPERATURE, before_queries_grow, with_rope
from spec_sdk.model.text_settings import TEXTS_OF, text_fields

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    TEMPERATURE: 0.1,
}


def _read_config(fields: Fields) -> ModelConfig:
    if fields.text("model_type", "") == "ministral3":
        return _read_text(fields)
    own, known = fields.section("text_config"), TEXTS_OF["mistral3"]
    kind = own.text("model_type", known[0])
    if kind not in known:
        raise UserError(f"{own.where}: the text of a mistral3 is {' or '.join(known)}, not '{kind}'")
    read = {"mistral": mistral.FAMILY.read_config, "mistral4": mistral4.FAMILY.read_config}.get(kind, _read_text)
    return replace(read(text_fields(fields)), prefix="language_model.")


def _read_text(fields: Fields) -> ModelConfig:
    fields = with_rope(fields, _YARN)
    window = fields.size_if_any("sliding_window")
    config = read_llama_like(
        fields,
        kv_heads=8,
        head_dim=128,
        windows=[window] * fields.size("num_hidden_layers"),
        theta=1e6,
        epsilon=1e-5,
    )
    return replace(config, max_context=before_queries_grow(fields, config.max_context))


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config = hf_config(gguf)
    rope = config["rope_parameters"]
    return config | {"model_type": "ministral3", "rope_parameters": rope | growing_queries(gguf, "mistral3", rope)}


FAMILY = Family(
    model_types=("ministral3", "mistral3"),
    gguf_architectures=("mistral3",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=mistral.FAMILY.weights,
)
