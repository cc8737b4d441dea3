"""Experts in MXFP4, of a gpt-oss in Hugging Face's layout and of GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.mxfp4 import FLOAT4
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.decoder import NativeDecoder
from spec_sdk_backends.native.ops import NativeOps
from tests.checkpoints.gguf_files import write_gguf
from tests.support.tiny_checkpoints import write_checkpoint

SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
CPU = torch.device("cpu")
TOKENS = list(range(3, 40))
Tensors = dict[str, torch.Tensor]


def written(directory: Path, spoil: Callable[[Tensors], None] = lambda tensors: None) -> Tensors:
    """A tiny gpt-oss with random blocks; what its experts' tensors are, as transformers expands them."""
    write_checkpoint(directory, "gpt_oss", **SHAPE)
    path, rng = directory / "model.safetensors", torch.Generator().manual_seed(3)
    tensors, expanded = load_file(path), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=rng).to(torch.uint8)
        scales = torch.randint(118, 124, (experts, outputs, inputs // 32), generator=rng).to(torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expanded[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    dense = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    spoil(tensors)
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return dense | expanded


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    """In few bits, and the same expanded."""
    few, dense = (tmp_path_factory.mktemp(name) for name in ("few", "dense"))
    tensors = written(few)
    write_checkpoint(dense, "gpt_oss", **SHAPE)
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    return open_checkpoint(str(few)), open_checkpoint(str(dense))


def logits_of(executor: TorchExecutor) -> torch.Tensor:
    running = Session(executor)
    running.prefill(0, TOKENS[:20])
    return running.score([0], [TokenTree.chain(TOKENS[20], TOKENS[21:])])[0].logits_NV


def test_experts_are_what_transformers_expands(both: tuple[Checkpoint, Checkpoint]) -> None:
    few, dense = both
    assert few.names() == dense.names()
    matrices = [name for name in few.names() if few.quantized(name) is not None]
    assert len(matrices) == 2 * 6 * 3
    for name in few.names():
        assert torch.equal(few.tensor(name), dense.tensor(name)), name
    for name in matrices:
        matrix = few.quantized(name)
        assert matrix is not None and (matrix.bits, matrix.levels) == (4, FLOAT4)
        assert matrix.nbytes == matrix.outputs * matrix.inputs // 32 * 18


def test_parts_of_experts(both: tuple[Checkpoint, Checkpoint]) -> None:
    """As ranks read them: some rows, or whole groups of columns."""
    few, dense = both
    for role, axis, first, end in (("gate", 0, 3, 17), ("up", 0, 31, 32), ("down", 0, 5, 64), ("up", 1, 32, 64)):
        name = f"model.layers.1.mlp.experts.4.{role}_proj.weight"
        matrix = few.quantized_part(name, axis, first, end)
        expected = dense.tensor(name).narrow(axis, first, end - first)
        assert matrix is not None and torch.equal(matrix.dequantized(torch.float32), expected)
        assert torch.equal(few.part(name, axis, first, end), expected)
        assert torch.equal(dense.part(name, axis, first, end), expected)
        assert matrix.levels == FLOAT4
    for role, first, end in (("gate", 3, 17), ("up", 31, 32), ("down", 5, 64)):
        # the last expert's: what lies behind them is not there
        bias = f"model.layers.1.mlp.experts.5.{role}_proj.bias"
        for checkpoint in both:
            assert torch.equal(checkpoint.part(bias, 0, first, end), dense.tensor(bias)[first:end])


@pytest.mark.parametrize("native", [False, True])
def test_logits_are_those_of_expanded_experts(both: tuple[Checkpoint, Checkpoint], native: bool) -> None:
    few, dense = both
    expected_NV = logits_of(TorchExecutor(load_decoder(dense, CPU, torch.float32), Ops()))
    ops = NativeOps(CpuOps()) if native else Ops()
    decoder = load_decoder(few, CPU, torch.float32, ops)
    gate_up = decoder.blocks[0].projections[2]
    assert gate_up.quantized is not None and gate_up.quantized.plain().levels == FLOAT4
    found_NV = logits_of(TorchExecutor(NativeDecoder(decoder) if native else decoder, ops))
    assert (found_NV - expected_NV).abs().max() <= 1e-4 * expected_NV.abs().max()


def _lacks(ending: str) -> Callable[[Tensors], None]:
    def lack(tensors: Tensors) -> None:
        del tensors[f"model.layers.0.mlp.experts.{ending}"]

    return lack


def _replaced(ending: str, by: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"model.layers.0.mlp.experts.{ending}": by})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_lacks("down_proj_scales"), "'.*down_proj_scales' is missing, which belongs to '.*down_proj_blocks'"),
        (_lacks("down_proj_blocks"), "'model.layers.0.mlp.experts.0.down_proj.weight' and 5 more are missing"),
        (_replaced("down_proj_blocks", torch.zeros(6, 64, 1, 8, dtype=torch.uint8)), "holds no blocks of 32 numbers"),
        (_replaced("down_proj_blocks", torch.zeros(6, 64, 1, 16, dtype=torch.int8)), "holds no blocks of 32 numbers"),
        (_replaced("gate_up_proj_blocks", torch.zeros(6, 63, 2, 16, dtype=torch.uint8)), "holds no blocks of 32"),
        (_replaced("down_proj_scales", torch.zeros(6, 64, 2, dtype=torch.uint8)), "does not fit '.*down_proj_blocks'"),
    ],
)
def test_what_does_not_fit(spoil: Callable[[Tensors], None], message: str, tmp_path: Path) -> None:
    written(tmp_path, spoil)
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("exponent", [160, 255])
def test_scales_that_float16_does_not_hold(exponent: int, tmp_path: Path) -> None:
    scales = torch.full((6, 64, 1), 120, dtype=torch.uint8)
    scales[3, 7] = exponent
    written(tmp_path, _replaced("down_proj_scales", scales))
    checkpoint = open_checkpoint(str(tmp_path))
    name = "model.layers.0.mlp.experts.{}.down_proj.weight"
    assert checkpoint.quantized(name.format(2)) is not None
    with pytest.raises(UserError, match=r"scales of 'model.layers.0.mlp.experts.3.down_proj.weight' are out of"):
        checkpoint.quantized(name.format(3))


def of_experts(name: str) -> str:
    return "MXFP4" if "_exps." in name else "Q8_0"


def test_a_gguf_file(tmp_path: Path) -> None:
    """Experts in MXFP4, all else in Q8_0, as they are published; matrices stay in their bits."""
    write_gguf(tmp_path / "m.gguf", "gpt_oss", of_experts)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    name = "model.layers.1.mlp.experts.{}.{}_proj.weight"
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for role in ("gate", "up", "down"):
        tensor = stored[f"blk.1.ffn_{role}_exps.weight"]
        expected = gguf.quants.dequantize(np.array(tensor.data), tensor.tensor_type)
        for expert, matrix_OI in enumerate(torch.from_numpy(expected)):
            matrix = checkpoint.quantized(name.format(expert, role))
            assert matrix is not None and (matrix.bits, matrix.levels) == (4, FLOAT4)
            assert torch.equal(matrix.dequantized(torch.float32), matrix_OI)
    of_attention = checkpoint.quantized("model.layers.1.self_attn.q_proj.weight")
    assert of_attention is not None and (of_attention.bits, of_attention.levels) == (8, None)


def test_levels_that_are_none(tmp_path: Path) -> None:
    """Of a converted file that was damaged."""
    write_gguf(tmp_path / "m.gguf", "gpt_oss", of_experts)
    directory = open_checkpoint(str(tmp_path / "m.gguf")).directory
    path = directory / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.0.down_proj.weight"
    for wrong in (tensors[f"{name}.levels"][:8].clone(), tensors[f"{name}.levels"].float()):
        other = tmp_path / f"other{wrong.numel()}"
        other.mkdir()
        for file in directory.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        save_file({**tensors, f"{name}.levels": wrong}, other / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=f"'{name}.levels' does not fit the codes of '{name}'"):
            open_checkpoint(str(other))
