"""Our decoder against transformers, architecture by architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import ARCHITECTURES, VOCABULARY, write_checkpoint

CPU = torch.device("cpu")


def load(directory: Path) -> TorchExecutor:
    return TorchExecutor(load_decoder(open_checkpoint(str(directory)), CPU, torch.float32), Ops())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, name)
    tokens = torch.randint(3, VOCABULARY, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([tokens])).logits[0]
    session = Session(load(tmp_path))
    whole = session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV
    assert (whole - expected_NV).abs().max() < 1e-4
    session.prefill(0, tokens[:60])
    rest = session.score([0], [TokenTree.chain(tokens[60], tokens[61:])])[0].logits_NV
    assert (rest - expected_NV[60:]).abs().max() < 1e-4
    # the comparison means something only if the logits differ between positions and tokens by far more
    assert expected_NV.std() > 0.1


@pytest.mark.parametrize("name", ["llama2", "qwen3"])
def test_greedy_output_equals_generate(name: str, tmp_path: Path) -> None:
    reference: Any = write_checkpoint(tmp_path, name)
    prompt = list(range(5, 25))
    with torch.inference_mode():
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=40, min_new_tokens=40, do_sample=False)[
            0, len(prompt) :
        ].tolist()
    session = Session(load(tmp_path))
    tokens = list(prompt)
    session.prefill(0, tokens[:-1])
    for _ in range(40):
        logits_V = session.score([0], [TokenTree.root_only(tokens[-1])])[0].logits_NV[0].clone()
        logits_V[2] = float("-inf")  # min_new_tokens forbids the end token
        session.commit([0], [[0]])
        tokens.append(int(logits_V.argmax()))
    assert tokens[len(prompt) :] == expected


def test_hidden_states_equal_transformers(tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, "smollm")
    tokens = list(range(3, 40))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    session = Session(load(tmp_path))
    prompt_hidden = session.prefill(0, tokens[:-1], taps=(0, 2, 4))
    pending_hidden = session.score([0], [TokenTree.root_only(tokens[-1])], taps=(0, 2, 4))[0].hidden
    for layer in (0, 2, 4):
        ours_NM = torch.cat((prompt_hidden[layer], pending_hidden[layer]))
        assert (ours_NM - expected[layer][0]).abs().max() < 1e-4


def test_long_prompts_are_prefilled_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path)
    tokens = torch.randint(3, VOCABULARY, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    executor = load(tmp_path)
    whole, chunked = Session(executor), Session(executor)
    whole_hidden = whole.prefill(0, tokens, taps=(3,))[3]
    monkeypatch.setattr("spec_sdk.model.session.PREFILL_CHUNK", 64)
    chunked_hidden = chunked.prefill(0, tokens, taps=(3,))[3]
    assert (whole_hidden - chunked_hidden).abs().max() < 1e-4
    logits = [s.score([0], [TokenTree.root_only(5)])[0].logits_NV for s in (whole, chunked)]
    assert (logits[0] - logits[1]).abs().max() < 1e-4
