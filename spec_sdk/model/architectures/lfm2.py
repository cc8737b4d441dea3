"""LFM2 and LFM2.5, dense."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.lfm2_like import gguf_lfm2_like, lfm2_weights, read_lfm2_like


def _read_config(fields: Fields) -> ModelConfig:
    layers = fields.size("num_hidden_layers")
    attending = fields.get("full_attn_idxs")
    attending = range(layers) if attending is None else attending
    if not isinstance(attending, list | range) or not all(layer in range(layers) for layer in attending):
        raise UserError(f"{fields.where}: full_attn_idxs is {attending!r}, not a list of layers below {layers}")
    convolved = [layer for layer in range(layers) if layer not in attending]
    return read_lfm2_like(fields, convolved=convolved, intermediate_size=_mlp_size(fields))


def _mlp_size(fields: Fields) -> int:
    """Two thirds of what config.json says, in whole multiples, unless it says that it is to be taken as it is."""
    size = fields.size("block_ff_dim", fields.size("intermediate_size", 12288))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    multiple = fields.size("block_multiple_of", 256)
    size = int(fields.positive("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    return -(-size // multiple) * multiple


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    return gguf_lfm2_like(gguf, "lfm2") | {"model_type": "lfm2", "block_auto_adjust_ff_dim": False}


FAMILY = Family(
    model_types=("lfm2",),
    gguf_architectures=("lfm2",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=lfm2_weights(),
)
