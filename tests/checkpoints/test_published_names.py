"""Tensors under the names that a family's checkpoints have, and those that transformers has in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.core_model_loading import revert_weight_conversion

from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.in_memory import InMemoryModel
from spec_sdk.model.packed_weights import published
from tests.support.tiny_checkpoints import checkpoint_tensors, random_model, tiny_tokenizer

RENAMED = ["mixtral", "qwen3_next", "phi3", "glm4", "granite4", "granitemoe", "ernie4_5_moe", "nemotron_h_moe"]
"""Those of which transformers' names are not their checkpoints'."""


@pytest.mark.parametrize(
    "name",
    ["smollm", "qwen2_moe", "glm4_moe", "gpt_oss", "qwen3_5_moe", "lfm2_moe", "deepseek_v3", "mistral4", *RENAMED],
)
def test_they_are_transformers(name: str) -> None:
    model = random_model(name)
    table = weights_of(read_config(model.config.to_dict(), "tests"))
    theirs = revert_weight_conversion(model, model.state_dict())
    found = published({key: value for key, value in checkpoint_tensors(model).items() if key in table.shapes}, table)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert found.keys() == theirs.keys() - tied
    for key, tensor in found.items():
        assert torch.equal(tensor, theirs[key]), key


@pytest.mark.parametrize(
    "name", ["dots1", "gpt_oss", "qwen3_5_moe", "lfm2", "lfm2_moe", "deepseek_v2", "mistral4", *RENAMED]
)
def test_a_model_as_transformers_has_it_in_memory_and_writes_it(name: str, tmp_path: Path) -> None:
    """Its own names, of which some are no checkpoint's."""
    model = random_model(name)
    expected = checkpoint_tensors(model)
    in_memory: Any = InMemoryModel(model.state_dict(), model.config.to_dict(), tmp_path)
    model.save_pretrained(tmp_path, save_original_format=False)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for source in (in_memory, open_checkpoint(str(tmp_path))):
        assert source.names() == weights_of(source.config).shapes.keys()
        for key in source.names():
            assert torch.equal(source.tensor(key), expected[key]), key
