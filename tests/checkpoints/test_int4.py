"""Checkpoints of 4 bits (GPTQ, AWQ, compressed-tensors) are what their codes, scales and zero points say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.int4_weights import int4_layout
from tests.support.tiny_checkpoints import write_checkpoint

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
GROUP = 64
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": GROUP}}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": GPTQ,
    "gptq_v2": {**GPTQ, "checkpoint_format": "gptq_v2"},
    "awq": AWQ,
    "packed": PACKED,
}
AWQ_PACKS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours lies in the lowest bits of an int32, which in the next …"""


def words(code_XN: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight neighbouring codes of each row as one int32."""
    rows = []
    for row in code_XN.tolist():
        eights = [row[i : i + 8] for i in range(0, len(row), 8)]
        rows.append([sum(eight[take] << 4 * place for place, take in enumerate(order)) for eight in eights])
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def round_to_int4(directory: Path, form: str) -> dict[str, torch.Tensor]:
    """Store the matrices of the checkpoint's blocks in 4 bits; what they are then."""
    path, dense, stored = directory / "model.safetensors", dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(3)
    for name, weight in load_file(path).items():
        if weight.dim() != 2 or ".layers." not in name or name.endswith(".gate.weight"):
            stored[name] = dense[name] = weight
            continue
        outputs, inputs = weight.shape
        groups = inputs // GROUP
        code_OI = torch.randint(0, 16, (outputs, inputs), generator=generator)
        zero_OG = torch.randint(1, 17, (outputs, groups), generator=generator) % 16
        # few digits, so that nothing is rounded
        scale_OG = torch.randint(1, 128, (outputs, groups), generator=generator) / 4096
        stem = name.removesuffix(".weight")
        if form == "packed":
            zero_OG = torch.full_like(zero_OG, 8)
            stored[f"{stem}.weight_packed"] = words(code_OI)
            stored[f"{stem}.weight_scale"] = scale_OG.bfloat16()
            stored[f"{stem}.weight_shape"] = torch.tensor([outputs, inputs])
        else:
            order = AWQ_PACKS if form == "awq" else tuple(range(8))
            stored[f"{stem}.qweight"] = words(code_OI.T, order) if form == "awq" else words(code_OI).T.contiguous()
            kept = (zero_OG - 1) % 16 if form == "gptq" else zero_OG
            stored[f"{stem}.qzeros"] = words(kept.T, order)
            stored[f"{stem}.scales"] = scale_OG.T.half().contiguous()
            if form.startswith("gptq"):
                stored[f"{stem}.g_idx"] = (torch.arange(inputs) // GROUP).int()
        wide = [part.repeat_interleave(GROUP, 1) for part in (zero_OG, scale_OG)]
        dense[name] = (code_OI - wide[0]) * wide[1]
    save_file(stored, path, {"format": "pt"})
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "quantization_config": CONFIGS[form]}))
    return dense


@pytest.mark.parametrize("form", CONFIGS)
@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_weights_are_what_is_stored(name: str, form: str, tmp_path: Path) -> None:
    experts: dict[str, Any] = {"moe_intermediate_size": 64, "mlp_only_layers": [1]} if "moe" in name else {}
    write_checkpoint(tmp_path, name, **SHAPE, **experts)
    dense = round_to_int4(tmp_path, form)
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.unread and checkpoint.names() <= dense.keys()
    for tensor in checkpoint.names():
        assert torch.equal(checkpoint.tensor(tensor), dense[tensor]), tensor
        matrix = checkpoint.quantized(tensor)
        if matrix is not None:
            assert matrix.bits == 4 and torch.equal(matrix.dequantized(torch.float32), dense[tensor])
            rows, columns = dense[tensor].shape
            assert torch.equal(checkpoint.part(tensor, 0, 5, rows - 2), dense[tensor][5 : rows - 2])
            assert torch.equal(checkpoint.part(tensor, 1, 7, columns), dense[tensor][:, 7:])
            part = checkpoint.quantized_part(tensor, 1, 32, columns)
            assert part is not None and torch.equal(part.dequantized(torch.float32), dense[tensor][:, 32:])
    assert any(checkpoint.quantized(tensor) is not None for tensor in checkpoint.names())


def test_offsets_are_rounded_to_float16(tmp_path: Path) -> None:
    """By less than a hundredth of the distance of two codes."""
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    dense = round_to_int4(tmp_path, "awq")
    path, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.q_proj"
    tensors = load_file(path)
    tensors[f"{name}.scales"] = tensors[f"{name}.scales"] * 1.0009765625
    save_file(tensors, path, {"format": "pt"})
    scale_OI = tensors[f"{name}.scales"].float().T.repeat_interleave(GROUP, 1)
    expected = (dense[f"{name}.weight"] / (scale_OI / 1.0009765625)).round() * scale_OI
    difference = open_checkpoint(str(tmp_path)).tensor(f"{name}.weight") - expected
    assert 0 < (difference / scale_OI).abs().max() < 0.01


NAME = "model.layers.1.mlp.down_proj"
Change = Callable[[dict[str, torch.Tensor]], Any]


def out_of_order(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"].flip(0)


def without_zeros(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[f"{NAME}.qzeros"]


def other_zeros(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.qzeros"] = tensors[f"{NAME}.qzeros"][:, 1:].contiguous()


def small_groups(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.scales"] = tensors[f"{NAME}.scales"].repeat(4, 1)
    tensors[f"{NAME}.qzeros"] = tensors[f"{NAME}.qzeros"].repeat(4, 1)
    del tensors[f"{NAME}.g_idx"]


def whole_scales(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.scales"] = tensors[f"{NAME}.scales"].int()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (out_of_order, rf"'{NAME}' has its inputs out of order \(desc_act\)"),
        (without_zeros, rf"tensor '{NAME}.qzeros' is missing, which belongs to '{NAME}.qweight'"),
        (other_zeros, rf"'{NAME}.qzeros' does not fit '{NAME}.qweight'"),
        (small_groups, rf"'{NAME}' has 12 scales for 192 inputs: no whole groups of 32"),
        (whole_scales, rf"tensor '{NAME}.scales' is no matrix of F16 or BF16"),
    ],
)
def test_what_does_not_fit(change: Change, told: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    round_to_int4(tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=told):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        {**GPTQ, "bits": 8},
        {**AWQ, "version": "gemv"},
        {**PACKED, "format": "marlin-24"},
        {**PACKED, "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "symmetric": False}}}},
        {**PACKED, "config_groups": {}},
        {**PACKED, "config_groups": {"a": 3}},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ],
)
def test_other_forms_are_refused(config: Any, tmp_path: Path) -> None:
    assert int4_layout(config) is None
    write_checkpoint(tmp_path, "qwen2")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
    with pytest.raises(UserError, match=f"quantized .quantization_config, {config['quant_method']}. in a form"):
        open_checkpoint(str(tmp_path))
