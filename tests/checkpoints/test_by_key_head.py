"""Qwen 3 Next's matrices that have several things of every key head: each is cut out whole, in whatever form."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_sdk.model.checkpoint import open_checkpoint
from tests.checkpoints.test_float8 import FORMS, round_to_float8
from tests.checkpoints.test_gguf_families import dense_copy, logits_of
from tests.checkpoints.test_integer_weights import round_to_integers
from tests.support.tiny_checkpoints import by_key_head, write_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
CUT = ("in_proj_qkvz.weight", "in_proj_ba.weight")


def parts(dense: dict[str, torch.Tensor], directory: Path) -> dict[str, torch.Tensor]:
    config = SimpleNamespace(**json.loads((directory / "config.json").read_text()))
    found: dict[str, torch.Tensor] = {}
    for name, tensor in dense.items():
        found |= by_key_head(name, tensor, config) if name.endswith(CUT) else {name: tensor}
    return found


@pytest.mark.parametrize("form", ["gptq", "awq", "packed", "packed of 8 bits, asymmetric", "int by channel"])
def test_matrices_in_few_bits(form: str, tmp_path: Path) -> None:
    directory = tmp_path / "m"
    write_checkpoint(directory, "qwen3_next", **SHAPE)
    expected = parts(round_to_integers(directory, form), directory)
    checkpoint = open_checkpoint(str(directory))
    assert not checkpoint.unread and checkpoint.names() <= expected.keys()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name), expected[name]), name
        if ".in_proj_" not in name:
            continue
        rows, columns = expected[name].shape
        assert torch.equal(checkpoint.part(name, 0, 1, rows - 1), expected[name][1 : rows - 1])
        assert torch.equal(checkpoint.part(name, 1, 7, columns), expected[name][:, 7:])
        matrix = checkpoint.quantized(name)
        some, right = checkpoint.quantized_part(name, 0, 1, rows - 1), checkpoint.quantized_part(name, 1, 32, columns)
        assert matrix is not None and some is not None and right is not None
        assert torch.equal(matrix.dequantized(torch.float32), expected[name])
        assert torch.equal(some.dequantized(torch.float32), expected[name][1 : rows - 1])
        assert torch.equal(right.dequantized(torch.float32), expected[name][:, 32:])
    assert (logits_of(directory) - logits_of(dense_copy(tmp_path, checkpoint))).abs().max() < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_matrices_in_float8(form: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3_next")
    expected = parts(round_to_float8(tmp_path, *FORMS[form]), tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.unread and checkpoint.names() <= expected.keys()
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name), expected[name]), name
