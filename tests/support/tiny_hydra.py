"""Tiny random Hydra heads, with and without the prefix layer of Hydra++, in the layout of zankner/Hydra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.draft_heads.hydra import HydraHeads
from spec_sdk.model.draft_heads.loading import HYDRA_HEADS
from spec_sdk.model.target_ends import TargetEnds
from tests.support.tiny_heads import HeadSizes, _Random, layer_tensors, load_kind, write_head

SIZES = replace(HeadSizes(), heads=6, kv_heads=2, head_dim=8, mlp=80)
"""Those of the tiny target, which a prefix layer shares."""
PREFIX = "prefix_embeding_layer"


def hydra_tensors(
    sizes: HeadSizes = SIZES, heads: int = 3, layers: int = 1, prefix: bool = False, seed: int = 0
) -> dict[str, torch.Tensor]:
    """The state dict of the heads. With a prefix a dropout stands before every block and every output head."""
    random, tensors, S = _Random(seed), dict[str, torch.Tensor](), sizes.S
    for i in range(heads):
        for j in range(layers):
            place, inputs = (2 * j + 1 if prefix else j), S if j else (i + 2) * S
            for part in ("linear", *([] if j else ["res_connection"])):
                tensors[f"hydra_mlp.{i}.{place}.{part}.weight"] = random.matrix(S, inputs)
                tensors[f"hydra_mlp.{i}.{place}.{part}.bias"] = random.bias(S)
        output = f"hydra_lm_head.{i}.1" if prefix else f"hydra_lm_head.{i}"
        tensors[f"{output}.weight"], tensors[f"{output}.bias"] = random.matrix(sizes.V, S), random.bias(sizes.V)
    if prefix:
        layer = f"{PREFIX}.layers.0"
        tensors |= layer_tensors(random, layer, sizes, S)
        tensors[f"{layer}.input_layernorm.weight"] = random.gain(S)
        tensors[f"{PREFIX}.norm.weight"] = random.gain(S)
        tensors[f"{PREFIX}.embed_tokens.weight"] = random.matrix(sizes.V, S)
    return tensors


def hydra_config(heads: int = 3, layers: int = 1, prefix: bool = False, **more: Any) -> dict[str, Any]:
    """config.json."""
    return {
        "hydra_num_heads": heads,
        "hydra_num_layers": layers,
        "hydra_head_arch": "prefix-mlp" if prefix else "mlp",
        "grounded_heads": True,
        "base_model_name_or_path": "org/tiny",
        **more,
    }


def write_hydra(
    directory: Path, sizes: HeadSizes = SIZES, heads: int = 3, layers: int = 1, prefix: bool = False, seed: int = 0
) -> Path:
    """Heads and their config.json, converted to safetensors."""
    tensors = hydra_tensors(sizes, heads, layers, prefix, seed)
    return write_head(directory, hydra_config(heads, layers, prefix), tensors)


def load_hydra(directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64) -> HydraHeads:
    """The heads in a directory, beside such a target."""
    return load_kind(HYDRA_HEADS, directory, ends, dtype)
