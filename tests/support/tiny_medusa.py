"""Tiny random Medusa heads in both layouts in which they are published.

Legend: V target vocabulary, M model dim of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.draft_heads.loading import MEDUSA_HEADS
from spec_sdk.model.draft_heads.medusa import MedusaHeads
from spec_sdk.model.target_ends import TargetEnds
from tests.support.tiny_heads import HeadSizes, _Random, load_kind, write_head


def medusa_tensors(sizes: HeadSizes, heads: int = 3, layers: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """As FasterDecoding publishes them."""
    random, tensors = _Random(seed), dict[str, torch.Tensor]()
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = random.matrix(sizes.S, sizes.S)
            tensors[f"{i}.{j}.linear.bias"] = random.bias(sizes.S)
        tensors[f"{i}.{layers}.weight"] = random.matrix(sizes.V, sizes.S)
    return tensors


def vllm_tensors(tensors: Mapping[str, torch.Tensor], layers: int = 1) -> dict[str, torch.Tensor]:
    """The same in the names of vLLM."""
    renamed = {}
    for name, tensor in tensors.items():
        head, number, *rest = name.split(".")
        if rest[0] == "linear":
            renamed[f"blocks.{head}.layers.{number}.{rest[1]}"] = tensor
        else:
            assert int(number) == layers
            renamed[f"lm_heads.{head}.weight"] = tensor
    return renamed


def vllm_config(sizes: HeadSizes, heads: int = 3, **more: Any) -> dict[str, Any]:
    """config.json of vLLM's conversion, of heads with biases."""
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": heads,
        "num_hidden_layers": 1,
        "hidden_size": sizes.S,
        "vocab_size": sizes.V,
        "medusa_fc_bias": True,
        **more,
    }


def write_medusa(
    directory: Path, sizes: HeadSizes, heads: int = 3, layers: int = 1, seed: int = 0, **more: Any
) -> Path:
    """Heads in FasterDecoding's layout, under the name that their trainer gives the file."""
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "org/tiny", **more}
    write_head(directory, config, medusa_tensors(sizes, heads, layers, seed))
    (directory / "model.safetensors").rename(directory / "medusa_lm_head.safetensors")
    return directory


def load_medusa(directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64) -> MedusaHeads:
    """The heads in a directory, beside such a target."""
    return load_kind(MEDUSA_HEADS, directory, ends, dtype)
