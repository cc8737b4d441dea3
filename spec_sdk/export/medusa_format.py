"""FasterDecoding's layout of Medusa heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.model.draft_heads.medusa_spec import SHARED_HEAD, MedusaSpec

_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")
_SHARED = f"{SHARED_HEAD}.weight"


def medusa_files(head: ExportedHead) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    """config.json and tensors. Raises UserError for what vLLM's old layout can say and this one cannot."""
    spec = head.spec
    assert isinstance(spec, MedusaSpec)
    if spec.rows < spec.vocabulary or spec.logit_scale != 1.0 or (spec.shared_head and _SHARED not in head.tensors):
        raise UserError(
            "task.format: medusa has no word for a reduced vocabulary, scaled logits, or the target's own output head"
        )
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in head.tensors.items():
        if block := _BLOCK.fullmatch(name):
            tensors[f"{block[1]}.{block[2]}.linear.{block[3]}"] = tensor
        elif output := _OUTPUT.fullmatch(name):
            tensors[f"{output[1]}.{spec.layers}.weight"] = tensor
    for i in range(spec.heads):
        if spec.shared_head:
            tensors[f"{i}.{spec.layers}.weight"] = head.tensors[_SHARED].clone()
        if not spec.bias:
            for j in range(spec.layers):
                weight_MM = tensors[f"{i}.{j}.linear.weight"]
                tensors[f"{i}.{j}.linear.bias"] = torch.zeros(len(weight_MM), dtype=weight_MM.dtype)
    config = {
        "model_type": "medusa",
        "medusa_num_heads": spec.heads,
        "medusa_num_layers": spec.layers,
        "hidden_size": spec.target_hidden_size,
        "vocab_size": spec.vocabulary,
        "base_model_name_or_path": head.target.called,
        "version": "2",
        "torch_dtype": head.dtype,
    }
    return config, tensors
