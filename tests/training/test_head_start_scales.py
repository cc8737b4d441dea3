"""A head begins as layers that the target scales: the scales are in its weights."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_start import head_start
from tests.support.tiny_checkpoints import random_model
from tests.support.tiny_decoder import ModelTensors


def test_of_a_granite() -> None:
    source, values = ModelTensors("granite", 0), random_model("granite").config.to_dict()
    config, table = source.config, weights_of(source.config)
    start = head_start(source, values, DraftShape([4]), (1, 2, 3), 0)
    last = config.num_layers - 1
    assert torch.allclose(start.weights["output"], 0.22 * source.tensor(table.name("o", last)))
    assert torch.allclose(start.weights["down"], 0.22 * source.tensor(table.name("down", last)))
    assert torch.allclose(start.weights["final_norm"], source.tensor(table.name("final_norm")) / 3.0)
    assert start.config.rms_norm_eps == pytest.approx(values["rms_norm_eps"])
    q = source.tensor(table.name("q", last))
    found = start.weights["qkv"][: len(q), q.shape[1] :]
    assert torch.allclose(found, q * 0.17 * config.head_dim**0.5, atol=1e-6)


def test_of_a_family_that_scales_nothing() -> None:
    source, values = ModelTensors("smollm", 0), random_model("smollm").config.to_dict()
    table = weights_of(source.config)
    start = head_start(source, values, DraftShape([4]), (1, 2, 3), 0)
    assert torch.equal(start.weights["output"], source.tensor(table.name("o", 4)))


def test_of_a_family_without_norms_before_its_sub_layers() -> None:
    """The head's layer has them, and they leave states as they are."""
    source, values = ModelTensors("exaone4", 0), random_model("exaone4").config.to_dict()
    start = head_start(source, values, DraftShape([4]), (1, 2, 3), 0)
    for name in ("embedding_norm", "feature_norm", "post_norm"):
        assert torch.equal(start.weights[name], torch.ones(48))
