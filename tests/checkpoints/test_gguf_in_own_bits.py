"""GGUF files in few bits stay so, on disk and in memory.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.gguf_blocks import LAYOUTS
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import QuantizedEmbedding
from spec_sdk.tree import TokenTree
from tests.checkpoints import gguf_files
from tests.checkpoints.gguf_files import write_gguf

KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
SMALLER = {"Q4_0": 7, "Q4_1": 6.3, "Q5_0": 5.7, "Q5_1": 5.3, "Q8_0": 3.7}
"""By how much than float32, at least."""
NAMES = ["smollm", "llama2", "qwen3", "gemma2", "qwen2_moe", "mixtral"]
EXPERTS = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "mlp_only_layers": []}


def decoder(checkpoint: Checkpoint, choice: str, fast: Callable[[int], bool] = lambda bits: True) -> Decoder:
    return load_decoder(ChosenWeights(checkpoint, choice, fast), torch.device("cpu"), torch.float32)


def logits(of: Decoder) -> torch.Tensor:
    tokens = list(range(3, 40))
    session = Session(TorchExecutor(of, Ops()))
    return session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_dense_model(name: str, kind: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = EXPERTS if name == "qwen2_moe" else {}
    write_gguf(tmp_path / "m.gguf", name, kind, **shape)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    kept, dense = decoder(checkpoint, "auto"), decoder(checkpoint, "dense")
    bits = [p.quantized.bits for p in kept.projections if p.quantized is not None]
    assert bits == [LAYOUTS[kind].bits] * len(kept.projections)
    assert all(p.quantized is None for p in dense.projections)
    # to the bit the same weights, rotary rows and fused rows in the same order
    for ours, theirs in zip(kept.projections, dense.projections, strict=True):
        assert torch.equal(ours.weight_OI, theirs.weight_OI)
    assert isinstance(kept.embedding, QuantizedEmbedding)
    assert torch.equal(kept.embedding.weight_VM, dense.embedding.weight_VM)
    expected_NV = logits(dense)
    assert (logits(kept) - expected_NV).abs().max() < 1e-5 * expected_NV.abs().max()
    assert kept.nbytes < dense.nbytes / SMALLER[kind]


def test_a_backend_without_kernels_gets_dense_weights_unless_bits_are_asked_for(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "smollm", "Q4_1")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert decoder(checkpoint, "auto", lambda bits: bits == 8).blocks[0].qkv.quantized is None
    for choice in ("int4", "int8"):
        # those of the file, not others
        kept = decoder(checkpoint, choice, lambda bits: False).blocks[0].qkv.quantized
        assert kept is not None and kept.bits == 4
    assert not Ops().fast_in_bits(4, torch.float32)


def test_nothing_is_expanded_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama2", "Q4_1")
    stored = sum(tensor.size for tensor in GGUFFile(path).tensors.values())
    written = (open_checkpoint(str(path)).directory / "model.safetensors").stat().st_size
    # the rest is safetensors' table of names
    assert stored < written < stored + 20_000


def test_a_file_of_several_quantisations(tmp_path: Path) -> None:
    """As in Q4_K_M: V and what is projected down have 6 bits in some layers, and so has the output head. Q, K and V are
    one matrix here, in 6 bits as a whole.
    """
    kinds = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"}

    def kind_of(name: str) -> str:
        stem = name.removesuffix(".weight").split(".")[-1]
        return kinds[stem] if stem in kinds and "blk.0." not in name else "Q4_K"

    write_gguf(tmp_path / "m.gguf", "smollm", kind_of, hidden_size=256, intermediate_size=512, head_dim=64)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    kept, dense = decoder(checkpoint, "auto"), decoder(checkpoint, "dense")
    assert [part.quantized and part.quantized.bits for part in kept.projections] == [4, 4, 4, 4, 6, 4, 4, 6, 6]
    assert isinstance(kept.embedding, QuantizedEmbedding) and kept.embedding.matrix.bits == 6
    for ours, theirs in zip(kept.projections, dense.projections, strict=True):
        assert torch.equal(ours.weight_OI, theirs.weight_OI)
    expected_NV = logits(dense)
    assert (logits(kept) - expected_NV).abs().max() < 1e-5 * expected_NV.abs().max()
    # natively too
    options = ["max_new_tokens=12", "ignore_eos=true", "chat=false", "backend.activations=exact"]
    answers = [
        [answer.tokens for answer in engine.generate(["a b c a b c"])]
        for engine in (
            Engine.from_pipeline("suffix", target=tmp_path / "m.gguf", overrides=[*options, f"model.weights={weights}"])
            for weights in ("auto", "dense")
        )
    ]
    assert answers[0] == answers[1]


def test_other_quantisations_become_dense(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "smollm", "TQ1_0", hidden_size=256, intermediate_size=256, head_dim=64)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert all(checkpoint.quantized(name) is None for name in checkpoint.names())
    assert decoder(checkpoint, "auto").blocks[0].qkv.quantized is None
    # and can be quantized like any others
    eight = decoder(checkpoint, "int8").blocks[0].qkv.quantized
    assert eight is not None and eight.bits == 8


@pytest.mark.parametrize(("kind", "at"), [("Q4_K", 0), ("Q4_K", 2), ("Q6_K", 208)])
def test_scales_that_float16_cannot_hold(kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are products, which the file does not have to be able to store. Such a matrix is dense."""
    original = gguf_files.quantized

    def huge(values: Any, kind: Any) -> Any:
        blocks = original(values, kind)
        if values.shape == (512, 256):
            # gate and up: 57344, a factor of the first block's scales or offsets
            blocks[0, at : at + 2] = (0x00, 0x7B)
        return blocks

    monkeypatch.setattr(gguf_files, "quantized", huge)
    write_gguf(tmp_path / "m.gguf", "smollm", kind, hidden_size=256, intermediate_size=512, head_dim=64)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    gate, down = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "down"))
    assert checkpoint.quantized(gate) is None and checkpoint.quantized(down) is not None
    assert checkpoint.tensor(gate).isfinite().all() and checkpoint.tensor(gate)[0, :256].abs().max() > 57344


def test_an_engine_answers_from_a_file_in_its_own_bits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "smollm", "Q4_1", num_hidden_layers=6)
    options = ["max_new_tokens=16", "ignore_eos=true", "chat=false"]
    kept, dense = (
        Engine.from_pipeline("easyspec_paper", target=tmp_path / "m.gguf", overrides=[f"model.weights={w}", *options])
        for w in ("int4", "dense")
    )
    sizes = [engine.pipeline.memory["target_weights"] for engine in (kept, dense)]
    assert sizes[0] is not None and sizes[1] is not None and sizes[0] < sizes[1] / 5
    answer = [answer.tokens for answer in kept.generate(["a b c a b c"])]
    assert answer == [answer.tokens for answer in kept.with_pipeline("vanilla").generate(["a b c a b c"])]
    assert answer == [answer.tokens for answer in dense.generate(["a b c a b c"])]
