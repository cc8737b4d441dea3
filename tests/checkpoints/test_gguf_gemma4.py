"""GGUF files of Gemma 4s: what they say of each layer, what is left out of them, and weights in few bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import GlobalHeads
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.checkpoints.gguf_files import write_gguf
from tests.checkpoints.test_gguf_families import dense_copy
from tests.support.tiny_checkpoints import checkpoint_tensors

NAMES = ["gemma4", "gemma4_small", "gemma4_moe"]
TOKENS = list(range(3, 63))
BLOCKS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
"""Rows of whole blocks."""
OVERRIDES: dict[str, dict[str, Any]] = {
    "gemma4": {"num_global_key_value_heads": 1},
    "gemma4_small": {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 384},
    "gemma4_moe": {"moe_intermediate_size": 32},
}
LAYERS = 8


def written(path: Path, name: str, kind: str = "F32", **more: Any) -> Any:
    return write_gguf(path, name, kind, **{**BLOCKS, "num_hidden_layers": LAYERS, **OVERRIDES[name], **more})


def logits_of(path: Path) -> torch.Tensor:
    decoder = load_decoder(open_checkpoint(str(path)), torch.device("cpu"), torch.float32)
    return Session(TorchExecutor(decoder, Ops())).score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV


def expected_of(reference: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits_NV: torch.Tensor = reference(torch.tensor([TOKENS])).logits[0]
    return logits_NV


def assert_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Of tensors that are not read."""
    said = capsys.readouterr()
    assert not said.out and all(line.startswith("converting") for line in said.err.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_tensors_are_the_models(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = written(tmp_path / "m.gguf", name)
    expected_NV, original = expected_of(reference), checkpoint_tensors(reference)
    if name == "gemma4_moe":
        # a scale that is applied twice is another model
        assert (original["model.layers.0.router.per_expert_scale"] - 1).abs().max() > 0.05
    capsys.readouterr()
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4
    assert expected_NV.std() > 0.1
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    assert ours.names() == original.keys() - {"lm_head.weight"}
    assert all(torch.equal(ours.tensor(key), original[key].view(ours.tensor(key).shape)) for key in ours.names())
    assert_nothing_is_said(capsys)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", NAMES)
def test_matrices_in_few_bits_stay_so(name: str, kind: str, tmp_path: Path) -> None:
    """Experts' too, beside a scale that is a weight of its own; the decoder is the one of the weights expanded."""
    # rows of K-quants are of 256
    larger = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256} if kind == "Q4_K" else {}
    of_rows = {"head_dim": 64, "global_head_dim": 128} if kind == "Q4_K" else {}
    if kind == "Q4_K" and name == "gemma4_small":
        of_rows |= {"hidden_size_per_layer_input": 256}
    written(tmp_path / "m.gguf", name, kind, **larger, **of_rows)
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    matrices = [key for key in ours.names() if re.search(r"proj(ection)?\.weight|embed_tokens|input_gate", key)]
    matrices = [key for key in matrices if "router" not in key]
    assert any("experts" in key for key in matrices) == (name == "gemma4_moe")
    for key in matrices:
        matrix = ours.quantized(key)
        assert matrix is not None and matrix.bits == (8 if kind == "Q8_0" else 4), key
    decoder = load_decoder(ours, torch.device("cpu"), torch.float32)
    assert isinstance(decoder, VariedDecoder)
    dense = [projection for projection in decoder.projections if projection.quantized is None]
    assert not dense
    expected_NV = logits_of(dense_copy(tmp_path, ours))
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 2e-3 * expected_NV.std()


def test_what_it_says_of_layers(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", "gemma4")
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert config.num_kv_heads == 2 and config.global_heads == GlobalHeads(1, 32, True)
    assert [config.windows[layer] for layer in (0, 1, 2, 7)] == [24, 24, None, None]
    assert config.global_rope is not None and config.global_rope.dims == 8 and config.layer_inputs is None
    written(tmp_path / "s.gguf", "gemma4_small")
    config = open_checkpoint(str(tmp_path / "s.gguf")).config
    assert config.kv_sources == (0, 1, 2, 3, 4, 2, 4, 2) and config.wide_mlps == (5, 6, 7)
    assert config.intermediate_size == 96 and config.layer_inputs is not None
    assert config.layer_inputs.size == 32 and config.layer_inputs.vocabulary == 384
    assert not open_checkpoint(str(tmp_path / "s.gguf")).config.values_are_keys(2)


def test_tensors_that_no_layer_makes_use_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp's converter writes what makes K and V of layers that attend to others'."""

    def add(writer: gguf.GGUFWriter) -> None:
        for layer, dim in ((5, 32), (6, 16), (7, 32)):
            for part in ("k", "v"):
                writer.add_tensor(f"blk.{layer}.attn_{part}.weight", np.ones((2 * dim, 64), np.float32))
            writer.add_tensor(f"blk.{layer}.attn_k_norm.weight", np.ones(dim, np.float32))

    reference = written(tmp_path / "m.gguf", "gemma4_small", customize=add)
    capsys.readouterr()
    assert (logits_of(tmp_path / "m.gguf") - expected_of(reference)).abs().max() < 1e-4
    assert_nothing_is_said(capsys)


def told(key: str, add: Callable[[gguf.GGUFWriter], None]) -> Callable[[gguf.GGUFWriter], None]:
    """``add`` in the place of what a file says under ``key``."""

    def say(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        add(writer)

    return say


def of_freqs(divisors: list[float]) -> Callable[[gguf.GGUFWriter], None]:
    def say(writer: gguf.GGUFWriter) -> None:
        del writer.tensors[0]["rope_freqs.weight"]
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))

    return say


@pytest.mark.parametrize(
    ("name", "say", "message"),
    [
        (
            "gemma4",
            told("gemma4.feed_forward_length", lambda w: w.add_feed_forward_length([96] * 7 + [192])),
            r"gemma4.feed_forward_length is \[96, .* 192\], other than any Gemma 4's",
        ),
        (
            "gemma4_small",
            told("gemma4.feed_forward_length", lambda w: w.add_feed_forward_length([96] * 5 + [192, 96, 192])),
            "other than any Gemma 4's",
        ),
        (
            "gemma4",
            told("gemma4.feed_forward_length", lambda w: w.add_feed_forward_length([96] * 7)),
            "gemma4.feed_forward_length has 7 numbers for 8 layers",
        ),
        (
            "gemma4",
            told("gemma4.attention.head_count_kv", lambda w: w.add_head_count_kv([2, 1, 1, 2, 2, 1, 2, 1])),
            "head_count_kv differs between layers of sliding_attention",
        ),
        (
            "gemma4",
            told("gemma4.attention.head_count_kv", lambda w: w.add_head_count_kv([2, 2, 0, 2, 2, 1, 2, 1])),
            "head_count_kv: 2 is 0, not a positive number",
        ),
        (
            "gemma4",
            told("gemma4.rope.dimension_count_swa", lambda w: w.add_rope_dimension_count_swa(8)),
            "partial rotary positions .gemma4.rope.dimension_count_swa. are not supported",
        ),
        (
            "gemma4",
            of_freqs([1.0] * 4 + [2.0] * 12),
            "rope_freqs.weight does more than keep a part of a head from turning",
        ),
        ("gemma4", of_freqs([1e30] * 4 + [1.0] * 12), "does more than keep a part"),
        ("gemma4", of_freqs([1e30] * 16), "partial_rotary_factor"),
        (
            "gemma4",
            told("gemma4.attention.sliding_window_pattern", lambda w: w.add_sliding_window_pattern([True, False])),
            "does not say of each of 8 layers whether it has a window",
        ),
        ("gemma4", told("gemma4.attention.key_length_swa", lambda w: None), "no gemma4.attention.key_length_swa"),
    ],
)
def test_what_a_file_cannot_say(
    name: str, say: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    written(tmp_path / "m.gguf", name, customize=say)
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_a_file_without_divisors_turns_whole_heads(tmp_path: Path) -> None:
    def drop(writer: gguf.GGUFWriter) -> None:
        del writer.tensors[0]["rope_freqs.weight"]

    rope: dict[str, dict[str, Any]] = {
        kind: {"rope_type": "default", "rope_theta": theta}
        for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
    }
    rope["full_attention"]["partial_rotary_factor"] = 1.0
    reference = written(tmp_path / "m.gguf", "gemma4", customize=drop, rope_parameters=rope)
    assert (logits_of(tmp_path / "m.gguf") - expected_of(reference)).abs().max() < 1e-4
