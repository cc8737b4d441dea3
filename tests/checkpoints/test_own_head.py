"""A model whose config.json says that its output head is the embedding, and whose files have one besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spec_sdk.bench.peers.assistant import assistant_of
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.in_memory import InMemoryModel
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.shards import ShardedSource
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ranks import ALONE
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint

CPU, TOKENS = torch.device("cpu"), [5, 9, 33, 7, 60, 12]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def with_head(directory: Path, name: str = "smollm", change: float = 0.5, **sizes: Any) -> Checkpoint:
    """A tied model whose files have a head of which the last number differs by ``change`` from the embedding."""
    write_checkpoint(directory, name, tie_word_embeddings=True, **sizes)
    tensors = load_file(directory / "model.safetensors")
    head_VM = tensors[EMBEDDING].clone()
    head_VM[-1, -1] += change
    save_file({**tensors, HEAD: head_VM}, directory / "model.safetensors", {"format": "pt"})
    return open_checkpoint(str(directory))


def agree(directory: Path) -> None:
    """Transformers and we compute the same."""
    session = Session(TorchExecutor(load_decoder(open_checkpoint(str(directory)), CPU, torch.float32), Ops()))
    ours_NV = session.score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        theirs_NV = model.eval()(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(ours_NV, theirs_NV, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["smollm", "gemma", "qwen2"])
def test_a_head_that_differs_is_used(name: str, tmp_path: Path) -> None:
    checkpoint = with_head(tmp_path, name)
    assert HEAD in checkpoint.names() and not checkpoint.config.tie_embeddings
    agree(tmp_path)


def test_a_head_that_is_the_embedding_is_one_with_it(tmp_path: Path) -> None:
    checkpoint = with_head(tmp_path, change=0.0)
    assert HEAD not in checkpoint.names() and checkpoint.config.tie_embeddings
    decoder = load_decoder(checkpoint, CPU, torch.float32)
    assert decoder.output_head.weight_OI.data_ptr() == decoder.embedding.weight_VM.data_ptr()


def test_a_head_in_another_dtype_may_be_the_embedding(tmp_path: Path) -> None:
    with_head(tmp_path, change=0.0)
    tensors = load_file(tmp_path / "model.safetensors")
    rounded = {EMBEDDING: tensors[EMBEDDING].bfloat16(), HEAD: tensors[EMBEDDING].bfloat16().float()}
    save_file({**tensors, **rounded}, tmp_path / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(str(tmp_path)).config.tie_embeddings


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (torch.zeros(7, 48), r"'lm_head.weight' has shape \[7, 48\], but the config asks for \[96, 48\]"),
        (torch.zeros(VOCABULARY, 48, dtype=torch.int32), "'lm_head.weight' is stored as I32"),
    ],
)
def test_a_head_that_cannot_be_one(head: torch.Tensor, words: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    save_file({**load_file(tmp_path / "model.safetensors"), HEAD: head}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=words):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_in_memory_too(change: float, tmp_path: Path) -> None:
    with_head(tmp_path, change=change)
    config = json.loads((tmp_path / "config.json").read_text())
    model = InMemoryModel(load_file(tmp_path / "model.safetensors"), config, tmp_path)
    assert (HEAD in model.names()) == bool(change) and model.config.tie_embeddings == (not change)


def test_a_rank_has_its_rows_of_it(tmp_path: Path) -> None:
    checkpoint = with_head(tmp_path)
    assert torch.equal(ShardedSource(checkpoint, ALONE, ALONE).tensor(HEAD), checkpoint.tensor(HEAD))


def test_a_cut_for_transformers_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    with_head(tmp_path / "target")
    agree(assistant_of(str(tmp_path / "target"), "cut", [0, 3], "float32").directory)
