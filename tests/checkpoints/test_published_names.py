"""Tensors under the names that a family's checkpoints have, of those that its table of weights has."""

from __future__ import annotations

import pytest
import torch
from transformers.core_model_loading import revert_weight_conversion

from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.packed_weights import published
from tests.support.tiny_checkpoints import checkpoint_tensors, random_model


@pytest.mark.parametrize("name", ["smollm", "mixtral", "qwen2_moe", "phi3", "glm4", "granite4", "granitemoe"])
def test_they_are_transformers(name: str) -> None:
    model = random_model(name)
    table = weights_of(read_config(model.config.to_dict(), "tests"))
    theirs = revert_weight_conversion(model, model.state_dict())
    found = published({key: value for key, value in checkpoint_tensors(model).items() if key in table.shapes}, table)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert found.keys() == theirs.keys() - tied
    for key, tensor in found.items():
        assert torch.equal(tensor, theirs[key]), key
