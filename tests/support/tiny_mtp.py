"""Tiny random prediction modules, under the names that families and the speculators library have for their tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.loading import PREDICTION_MODULES
from spec_sdk.model.target_ends import TargetEnds
from tests.support.tiny_heads import HeadSizes, _Random, layer_tensors, load_kind, speculators_config, write_head

SIZES = replace(HeadSizes(), heads=6, kv_heads=2, head_dim=8, mlp=80, W=96)
"""Those of the tiny target of five layers."""
LAYERS = 5
QWEN3_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
NAMES: dict[str, dict[str, str]] = {
    "deepseek": {
        "input_proj": f"model.layers.{LAYERS}.eh_proj",
        "token_layernorm": f"model.layers.{LAYERS}.enorm",
        "hidden_layernorm": f"model.layers.{LAYERS}.hnorm",
        "final_layernorm": f"model.layers.{LAYERS}.shared_head.norm",
        "layer": f"model.layers.{LAYERS}",
    },
    "qwen": {
        "input_proj": "mtp.fc",
        "token_layernorm": "mtp.pre_fc_norm_embedding",
        "hidden_layernorm": "mtp.pre_fc_norm_hidden",
        "final_layernorm": "mtp.norm",
        "layer": "mtp.layers.0",
    },
    **{
        family: {
            **{
                part: f"{prefix}.{part}"
                for part in ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
            },
            "layer": prefix,
        }
        for family, prefix in (("mimo", "model.mtp_layers.0"), ("speculators", "mtp_layers.0"))
    },
}
"""Family → what a part of the module is called there."""


def mtp_tensors(
    naming: str, sizes: HeadSizes = SIZES, seed: int = 0, qk_norm: bool = False, bias: bool = False, experts: int = 0
) -> dict[str, torch.Tensor]:
    """The tensors of a module. ``experts``: of so many in the place of its MLP, of ``QWEN3_MOE``'s size."""
    random, names, M = _Random(seed), NAMES[naming], sizes.M
    layer = names["layer"]
    tensors = {
        f"{names['input_proj']}.weight": random.matrix(M, 2 * M),
        **{f"{names[f'{part}_layernorm']}.weight": random.gain(M) for part in ("token", "hidden", "final")},
        **layer_tensors(random, layer, sizes, M),
        f"{layer}.input_layernorm.weight": random.gain(M),
    }
    if qk_norm:
        tensors |= {f"{layer}.self_attn.{part}_norm.weight": random.gain(sizes.head_dim) for part in "qk"}
    if bias:
        for part in "qkv":
            rows = len(tensors[f"{layer}.self_attn.{part}_proj.weight"])
            tensors[f"{layer}.self_attn.{part}_proj.bias"] = random.bias(rows)
    if experts:
        tensors = {name: tensor for name, tensor in tensors.items() if ".mlp." not in name}
        tensors[f"{layer}.mlp.gate.weight"] = random.matrix(experts, M)
        for i in range(experts):
            expert, rows = f"{layer}.mlp.experts.{i}", QWEN3_MOE["moe_intermediate_size"]
            tensors[f"{expert}.gate_proj.weight"], tensors[f"{expert}.up_proj.weight"] = (
                random.matrix(rows, M) for _ in range(2)
            )
            tensors[f"{expert}.down_proj.weight"] = random.matrix(M, rows)
    return tensors


def model_config(model_type: str = "llama", **more: Any) -> dict[str, Any]:
    """config.json of a target with a module."""
    return SIZES.config(**{"model_type": model_type, "num_hidden_layers": LAYERS, **more})


def write_module(directory: Path, naming: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    """A module without its target: what the speculators library writes, or a target's directory with nothing else."""
    if naming == "speculators":
        return write_head(directory, speculators_config(SIZES, "mtp", config, num_nextn_predict_layers=1), tensors)
    return write_head(directory, config, tensors)


def add_module(target: Path, naming: str, seed: int = 0, **options: Any) -> Path:
    """Put a module among the tensors of a target's checkpoint."""
    path, said = target / "model.safetensors", target / "config.json"
    save_file({**load_file(path), **mtp_tensors(naming, seed=seed, **options)}, path, metadata={"format": "pt"})
    said.write_text(json.dumps({**json.loads(said.read_text()), "num_nextn_predict_layers": 1}))
    return target


def load_module(
    directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64, **choices: Any
) -> DraftHeadExecutor:
    """The module in a directory, beside such a target."""
    return load_kind(PREDICTION_MODULES, directory, ends, dtype, **choices)
