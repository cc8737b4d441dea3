"""FP8 checkpoints are the dense ones that their scales make of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.float8_weights import block_of, is_float8
from spec_sdk.model.in_memory import InMemoryModel
from tests.support.tiny_checkpoints import write_checkpoint

BLOCK = (16, 32)
"""Neither divides all the sizes of the model."""
DEEPSEEK = {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}
FORMS: dict[str, tuple[dict[str, Any], str, tuple[int, int]]] = {
    "blocks": (DEEPSEEK, "_scale_inv", BLOCK),
    "rows": (CHANNELS, "_scale", (1, 0)),
    "one": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "_scale", (0, 0)),
}
"""config.json, what scales are called, and rows and columns of a block, 0 for all."""


def round_to_float8(
    directory: Path, config: dict[str, Any], ending: str, block: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """Store the matrices of the checkpoint's blocks as FP8; what they are then."""
    path, dense = directory / "model.safetensors", dict[str, torch.Tensor]()
    stored = dict[str, torch.Tensor]()
    for name, weight in load_file(path).items():
        stored[name] = dense[name] = weight
        if weight.dim() != 2 or ".layers." not in name:
            continue
        rows, columns = (size or length for size, length in zip(block, weight.shape, strict=True))
        scale = torch.rand(math.ceil(weight.shape[0] / rows), math.ceil(weight.shape[1] / columns)) + 0.5
        wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: weight.shape[0], : weight.shape[1]]
        stored[name] = (weight / wide).to(torch.float8_e4m3fn)
        stored[name + ending] = scale if block[1] or block[0] else scale.reshape(())
        dense[name] = stored[name].float() * wide
    save_file(stored, path, {"format": "pt"})
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
    return dense


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_what_is_stored_times_its_scales(form: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3")
    dense = round_to_float8(tmp_path, *FORMS[form])
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.unread and checkpoint.names() <= dense.keys()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name), dense[name])
        if dense[name].dim() == 2:
            rows, columns = dense[name].shape
            assert torch.equal(checkpoint.part(name, 0, 3, rows - 1), dense[name][3 : rows - 1])
            assert torch.equal(checkpoint.part(name, 1, 17, columns), dense[name][:, 17:])


def test_experts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3_moe")
    dense = round_to_float8(tmp_path, *FORMS["blocks"])
    checkpoint = open_checkpoint(str(tmp_path))
    assert any(".experts." in name for name in checkpoint.names())
    assert all(torch.equal(checkpoint.tensor(name), dense[name]) for name in checkpoint.names())


def damaged(directory: Path, change: Any) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


NAME = "model.layers.1.mlp.up_proj.weight"


def without_scale(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[f"{NAME}_scale_inv"]


def larger_scale(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}_scale_inv"] = torch.ones(7, 7)


def whole_scale(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}_scale_inv"] = tensors[f"{NAME}_scale_inv"].to(torch.uint8)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_scale, rf"tensor '{NAME}' is stored as F8_E4M3; read are .* FP8 with its scales"),
        (larger_scale, rf"'{NAME}_scale_inv' of shape \[7, 7\] does not fit '{NAME}' of \[80, 48\]"),
        (whole_scale, rf"tensor '{NAME}_scale_inv' is stored as U8"),
    ],
)
def test_scales_that_do_not_fit(change: Any, told: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    round_to_float8(tmp_path, *FORMS["blocks"])
    damaged(tmp_path, change)
    with pytest.raises(UserError, match=told):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "readable"),
    [
        ({"quant_method": "fbgemm_fp8"}, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, False),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, False),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}},
            False,
        ),
        ({"quant_method": "awq"}, False),
        ({}, False),
    ],
)
def test_which_forms_are_read(config: Any, readable: bool) -> None:
    assert is_float8(config) == readable


def test_where_blocks_are_said() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 32]}
    assert block_of({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": weights}}}) == (64, 32)
    assert block_of(DEEPSEEK) == BLOCK
    assert block_of({}) == block_of({"weight_block_size": [0, "x"]}) == (128, 128)


def test_in_memory_there_are_no_scales(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    round_to_float8(tmp_path, *FORMS["blocks"])
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(UserError, match="is torch.float8_e4m3fn; only float32, bfloat16 and float16"):
        InMemoryModel(load_file(tmp_path / "model.safetensors"), config, str(tmp_path))
