"""EXAONE 4: norms after the sub-layers, none before, and of single heads of Q and K.

The larger one has a window in three layers of four; the others have no rotary positions then. arXiv:2507.11407, §2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import gguf_layer_types, hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, output_norms, read_llama_like, windows_by_type

_GGUF, _WINDOW, _PATTERN = "exaone4", 4096, 4


def _read_config(fields: Fields) -> ModelConfig:
    layers, window = range(fields.size("num_hidden_layers")), fields.size_or_none("sliding_window", _WINDOW)
    told = window is None or fields.get("layer_types") is not None
    windows = windows_by_type(fields, window, [not told and _slides(fields, layer) for layer in layers])
    config = read_llama_like(
        fields,
        kv_heads=32,
        qk_norm=True,
        epsilon=1e-5,
        windows=windows,
        unrotated=[layer for layer in layers if window is not None and windows[layer] is None],
    )
    return replace(config, output_norms=True)


def _slides(fields: Fields, layer: int) -> bool:
    """By a pattern such as LLLG, or the number of layers of which the last sees all."""
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise UserError(f"{fields.where}: sliding_window_pattern is {pattern!r}, not letters L and G")
        return pattern[layer % len(pattern)] == "L"
    return (layer + 1) % fields.size("sliding_window_pattern", _PATTERN) != 0


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config = hf_config(gguf)
    window = gguf.metadata.get(f"{_GGUF}.attention.sliding_window")
    types = {} if not window else {"layer_types": gguf_layer_types(gguf, _GGUF, config["num_hidden_layers"])}
    return config | {"sliding_window": window or None} | types


FAMILY = Family(
    model_types=("exaone4",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(normed=False), *mlp(norm=None), *output_norms(), *output()),
)
