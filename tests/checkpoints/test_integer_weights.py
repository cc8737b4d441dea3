"""Checkpoints of 4 and 8 bits (GPTQ, AWQ, compressed-tensors) are what their codes, scales and zero points say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk import Engine
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.integer_layouts import integer_layout, unpacked
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_checkpoints import write_checkpoint

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
NAME = "model.layers.1.mlp.down_proj"
GROUP = 64
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def compressed(form: str, bits: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "group_size": GROUP, **more}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


PACKED = compressed("pack-quantized", 4)
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": GPTQ,
    "gptq_v2": {**GPTQ, "checkpoint_format": "gptq_v2"},
    "gptq of 8 bits": {**GPTQ, "bits": 8},
    "awq": AWQ,
    "packed": PACKED,
    "packed, asymmetric": compressed("pack-quantized", 4, symmetric=False),
    "packed of 8 bits": compressed("pack-quantized", 8),
    "packed of 8 bits, asymmetric": compressed("pack-quantized", 8, symmetric=False),
    "int": compressed("int-quantized", 8),
    "int by channel": compressed("int-quantized", 8, strategy="channel", group_size=None),
    "int, asymmetric": compressed("int-quantized", 8, symmetric=False),
}
AWQ_PACKS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours lies in the lowest bits of an int32, which in the next …"""


def bits_of(form: str) -> int:
    return 8 if "8 bits" in form or form.startswith("int") else 4


def words(code_XN: torch.Tensor, bits: int = 4, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Neighbouring codes of each row as one int32, as many as it holds; the last one may have fewer."""
    count, rows = 32 // bits, []
    for row in code_XN.tolist():
        runs = [row[i : i + count] + [0] * (i + count - len(row)) for i in range(0, len(row), count)]
        rows.append([sum(run[take] << bits * at for at, take in enumerate(order or range(count))) for run in runs])
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def round_to_integers(directory: Path, form: str) -> dict[str, torch.Tensor]:
    """Store the matrices of the checkpoint's blocks in a form; what they are then."""
    path, dense, stored = directory / "model.safetensors", dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    generator, bits = torch.Generator().manual_seed(3), bits_of(form)
    for name, weight in load_file(path).items():
        if weight.dim() != 2 or ".layers." not in name or name.endswith("gate.weight"):
            stored[name] = dense[name] = weight
            continue
        outputs, inputs = weight.shape
        size = inputs if "channel" in form else GROUP
        code_OI = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator)
        zero_OG = torch.randint(1, (1 << bits) + 1, (outputs, inputs // size), generator=generator) % (1 << bits)
        # few digits, so that nothing is rounded
        scale_OG = torch.randint(1, 8 if bits == 8 else 128, zero_OG.shape, generator=generator) / 4096
        stem = name.removesuffix(".weight")
        if form.startswith(("packed", "int")):
            middle = 1 << (bits - 1)
            stored[f"{stem}.weight_scale"] = scale_OG.bfloat16()
            whole = form.startswith("int")
            if "asymmetric" not in form:
                zero_OG = torch.full_like(zero_OG, middle)
            else:
                packed = words(zero_OG.T, bits).T.contiguous()
                stored[f"{stem}.weight_zero_point"] = (zero_OG - middle).to(torch.int8) if whole else packed
            if whole:
                stored[f"{stem}.weight"] = (code_OI - middle).to(torch.int8)
            else:
                stored[f"{stem}.weight_packed"] = words(code_OI, bits)
                stored[f"{stem}.weight_shape"] = torch.tensor([outputs, inputs])
        else:
            order = AWQ_PACKS if form == "awq" else None
            along = words(code_OI.T, bits, order) if form == "awq" else words(code_OI, bits).T.contiguous()
            kept = zero_OG if form in ("awq", "gptq_v2") else (zero_OG - 1) % (1 << bits)
            stored[f"{stem}.qweight"], stored[f"{stem}.qzeros"] = along, words(kept.T, bits, order)
            stored[f"{stem}.scales"] = scale_OG.T.half().contiguous()
            if form.startswith("gptq"):
                stored[f"{stem}.g_idx"] = (torch.arange(inputs) // size).int()
        wide = [part.repeat_interleave(size, 1) for part in (zero_OG, scale_OG)]
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
    dense = round_to_integers(tmp_path, form)
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.unread and checkpoint.names() <= dense.keys()
    for tensor in checkpoint.names():
        assert torch.equal(checkpoint.tensor(tensor), dense[tensor]), tensor
        matrix = checkpoint.quantized(tensor)
        if matrix is not None:
            assert matrix.bits == bits_of(form) and torch.equal(matrix.dequantized(torch.float32), dense[tensor])
            rows, columns = dense[tensor].shape
            assert torch.equal(checkpoint.part(tensor, 0, 5, rows - 2), dense[tensor][5 : rows - 2])
            assert torch.equal(checkpoint.part(tensor, 1, 7, columns), dense[tensor][:, 7:])
            part = checkpoint.quantized_part(tensor, 1, 32, columns)
            assert part is not None and torch.equal(part.dequantized(torch.float32), dense[tensor][:, 32:])
    assert any(checkpoint.quantized(tensor) is not None for tensor in checkpoint.names())


@pytest.mark.parametrize("form", ["gptq", "gptq of 8 bits", "packed", "packed, asymmetric", "int"])
def test_inputs_out_of_order_are_expanded(form: str, tmp_path: Path) -> None:
    """Of one matrix; the others stay in few bits."""
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    dense = round_to_integers(tmp_path, form)
    path, name, ending = tmp_path / "model.safetensors", f"{NAME}.weight", "g_idx" if "gptq" in form else "weight_g_idx"
    tensors = load_file(path)
    order_I = torch.randperm(192, generator=torch.Generator().manual_seed(0))
    tensors[f"{NAME}.{ending}"] = (order_I // GROUP).int()
    tensors[f"model.layers.0.mlp.down_proj.{ending}"] = torch.full((192,), -1, dtype=torch.int32)
    save_file(tensors, path, {"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.unread and checkpoint.quantized(name) is None
    assert checkpoint.quantized("model.layers.0.mlp.down_proj.weight") is not None
    if "gptq" in form:
        packed, zeros, scales = (tensors[f"{NAME}.{part}"] for part in ("qweight", "qzeros", "scales"))
        code_OI = unpacked(packed, bits_of(form)).transpose(1, 2).flatten(0, 1).T
        zero_OG = (unpacked(zeros, bits_of(form)).flatten(1).T + 1) & (1 << bits_of(form)) - 1
        expected = (code_OI.float() - zero_OG.float()[:, order_I // GROUP]) * scales.T.float()[:, order_I // GROUP]
    else:
        # whole groups change places
        scale_OI = tensors[f"{NAME}.weight_scale"].float().repeat_interleave(GROUP, 1)
        zero_OI = torch.full_like(scale_OI, 0)
        if "asymmetric" in form:
            zero_OG = unpacked(tensors[f"{NAME}.weight_zero_point"], 4).transpose(1, 2).flatten(0, 1)
            zero_OI = zero_OG.float().repeat_interleave(GROUP, 1) - 8
        code_OI = dense[name] / scale_OI + zero_OI
        expected = (code_OI - zero_OI[:, order_I]) * scale_OI[:, order_I]
    assert torch.equal(checkpoint.tensor(name), expected)
    assert torch.equal(checkpoint.part(name, 0, 3, 9), expected[3:9])
    assert torch.equal(checkpoint.part(name, 1, 5, 100), expected[:, 5:100])


@pytest.mark.parametrize("factor", [1e-7, 2e7])
@pytest.mark.parametrize("form", ["gptq", "packed, asymmetric", "int"])
def test_scales_that_float16_does_not_hold_are_expanded(form: str, factor: float, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    dense = round_to_integers(tmp_path, form)
    path, name = tmp_path / "model.safetensors", NAME + (".scales" if form == "gptq" else ".weight_scale")
    tensors = load_file(path)
    before = tensors[name].float()
    tensors[name] = before * factor
    save_file(tensors, path, {"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path))
    found = checkpoint.tensor(f"{NAME}.weight")
    assert checkpoint.quantized(f"{NAME}.weight") is None and found.isfinite().all()
    torch.testing.assert_close(found, dense[f"{NAME}.weight"] * factor, rtol=1e-5, atol=0)
    # a row of zeros has a tiny scale, which is no loss
    tensors[name] = before
    tensors[name].select(1 if form == "gptq" else 0, 3).fill_(1e-12)
    save_file(tensors, path, {"format": "pt"})
    assert open_checkpoint(str(tmp_path)).quantized(f"{NAME}.weight") is not None


def stored_twice(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.weight"] = torch.zeros(64, 192)
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"].flip(0)


@pytest.mark.parametrize("form", ["packed", "int", "int by channel"])
def test_symmetric_ones_have_no_offsets(form: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    round_to_integers(tmp_path, form)
    matrix = open_checkpoint(str(tmp_path)).quantized("model.layers.0.mlp.down_proj.weight")
    assert matrix is not None and matrix.offset_OG is None


@pytest.mark.parametrize("form", ["int by channel", "packed, asymmetric"])
def test_an_engine_answers_from_them(form: str, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path, chat=False, **SHAPE)
    round_to_integers(tmp_path, form)
    options = ["max_new_tokens=8", "ignore_eos=true", "chat=false", "backend.activations=exact"]
    answers = [
        [answer.tokens for answer in engine.generate(["a b c a b c"])]
        for engine in (
            Engine.from_pipeline("suffix", target=tmp_path, overrides=[*options, f"model.weights={weights}"])
            for weights in ("auto", "dense")
        )
    ]
    assert answers[0] == answers[1]


def test_offsets_are_rounded_to_float16(tmp_path: Path) -> None:
    """By less than a hundredth of the distance of two codes."""
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    dense = round_to_integers(tmp_path, "awq")
    path, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.q_proj"
    tensors = load_file(path)
    tensors[f"{name}.scales"] = tensors[f"{name}.scales"] * 1.0009765625
    save_file(tensors, path, {"format": "pt"})
    scale_OI = tensors[f"{name}.scales"].float().T.repeat_interleave(GROUP, 1)
    expected = (dense[f"{name}.weight"] / (scale_OI / 1.0009765625)).round() * scale_OI
    difference = open_checkpoint(str(tmp_path)).tensor(f"{name}.weight") - expected
    assert 0 < (difference / scale_OI).abs().max() < 0.01


Change = Callable[[dict[str, torch.Tensor]], Any]


def of_other_groups(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"] + 1


def without(part: str) -> Change:
    return lambda tensors: tensors.pop(f"{NAME}.{part}")


def one_less(part: str) -> Change:
    """A row less, or an input."""
    return lambda tensors: tensors.update({f"{NAME}.{part}": tensors[f"{NAME}.{part}"][1:].contiguous()})


def other_zeros(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.qzeros"] = tensors[f"{NAME}.qzeros"][:, 1:].contiguous()


def small_groups(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.scales"] = tensors[f"{NAME}.scales"].repeat(4, 1)
    tensors[f"{NAME}.qzeros"] = tensors[f"{NAME}.qzeros"].repeat(4, 1)
    del tensors[f"{NAME}.g_idx"]


def whole_scales(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.scales"] = tensors[f"{NAME}.scales"].int()


def one_scale(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{NAME}.weight_scale"] = torch.ones(1)


@pytest.mark.parametrize(
    ("form", "change", "told"),
    [
        ("gptq", of_other_groups, rf"'{NAME}.g_idx' does not fit '{NAME}.qweight'"),
        ("gptq", one_less("g_idx"), rf"'{NAME}.g_idx' does not fit '{NAME}.qweight'"),
        ("gptq", without("qzeros"), rf"tensor '{NAME}.qzeros' is missing, which belongs to '{NAME}.qweight'"),
        ("gptq", other_zeros, rf"'{NAME}.qzeros' does not fit '{NAME}.qweight'"),
        ("gptq", small_groups, rf"'{NAME}' has 12 scales for 192 inputs: no whole groups of 32"),
        ("gptq", whole_scales, rf"tensor '{NAME}.scales' is no matrix of F16 or BF16 or F32"),
        ("gptq", stored_twice, rf"tensor '{NAME}.weight' is stored twice, once in few bits"),
        ("packed, asymmetric", without("weight_zero_point"), rf"tensor '{NAME}.weight_zero_point' is missing"),
        ("int, asymmetric", without("weight_zero_point"), rf"tensor '{NAME}.weight_zero_point' is missing"),
        ("int", one_less("weight_scale"), rf"'{NAME}.weight_scale' does not fit '{NAME}.weight'"),
        (
            "packed, asymmetric",
            one_less("weight_zero_point"),
            rf"'{NAME}.weight_zero_point' does not fit '{NAME}.weight_packed'",
        ),
        ("int, asymmetric", one_less("weight_zero_point"), rf"'{NAME}.weight_zero_point' does not fit '{NAME}.weight'"),
        ("int", one_scale, rf"tensor '{NAME}.weight_scale' is no matrix of F16 or BF16 or F32"),
    ],
)
def test_what_does_not_fit(form: str, change: Change, told: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", **SHAPE)
    round_to_integers(tmp_path, form)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=told):
        open_checkpoint(str(tmp_path))


def test_bits_may_be_written_with_a_point() -> None:
    layout = integer_layout({**GPTQ, "bits": 4.0})
    assert layout is not None and layout.in_word == 8


@pytest.mark.parametrize(
    "config",
    [
        {**GPTQ, "bits": 3},
        {**AWQ, "version": "gemv"},
        {**AWQ, "bits": 8},
        {**GPTQ, "bits": [4]},
        compressed("marlin-24", 4),
        compressed("pack-quantized", 4, type=["int"]),
        {**PACKED, "config_groups": {"a": {"weights": {"num_bits": [4], "type": "int"}}}},
        compressed("int-quantized", 4),
        compressed("pack-quantized", 3),
        {**PACKED, "config_groups": {**PACKED["config_groups"], "b": {"weights": {"num_bits": 8, "type": "int"}}}},
        {**PACKED, "config_groups": {}},
        {**PACKED, "config_groups": {"a": 3}},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ],
)
def test_other_forms_are_refused(config: Any, tmp_path: Path) -> None:
    assert integer_layout(config) is None
    write_checkpoint(tmp_path, "qwen2")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
    with pytest.raises(UserError, match=f"quantized .quantization_config, {config['quant_method']}. in a form"):
        open_checkpoint(str(tmp_path))
