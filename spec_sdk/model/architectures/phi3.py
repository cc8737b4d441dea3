"""Phi 3, 3.5 and 4, also mini: Q, K and V in one matrix, gate and up in another; rotary positions may be partial."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, one_gate_up, one_qkv, output, read_llama_like
from spec_sdk.model.rope_fields import SPELLINGS


def _read_config(fields: Fields) -> ModelConfig:
    fields = Fields({**fields.values, **{key: _long_rope(fields.get(key)) for key in SPELLINGS}}, fields.where)
    window = fields.size_if_any("sliding_window")
    config = read_llama_like(
        fields, epsilon=1e-5, partial_rotary=1.0, windows=[window] * fields.size("num_hidden_layers")
    )
    if config.rope_scaling is not None and config.rope_scaling.kind != "longrope":
        raise UserError(f"{fields.where}: rope type '{config.rope_scaling.kind}' is none of Phi's, which is 'longrope'")
    return config


def _long_rope(scaling: Any) -> Any:
    """Some of the first files call LongRoPE ``yarn``."""
    if not isinstance(scaling, dict) or "yarn" not in (scaling.get("type"), scaling.get("rope_type")):
        return scaling
    return {**{key: value for key, value in scaling.items() if key != "type"}, "rope_type": "longrope"}


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return hf_config(gguf, partial_rotary=True) | {
        "sliding_window": gguf.metadata.get("phi3.attention.sliding_window") or None
    }


FAMILY = Family(
    model_types=("phi3",),
    gguf_architectures=("phi3",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *one_qkv(attention()), *one_gate_up(mlp()), *output()),
)
