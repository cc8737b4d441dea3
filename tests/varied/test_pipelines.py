"""Pipelines of Gemma 4s answer as plain decoding does, alone and among others, and say what they cannot do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.errors import UserError
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk_backends.ttnn.model import check_model
from spec_sdk_drafters.layer_skip import LayerSkipDrafter
from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_decoder import ModelTensors

PIPELINES = {
    "suffix": (),
    "token_recycling": (),
    "sd_chain": ("model.draft=DRAFT",),
    "specinfer_tree": ("model.draft=DRAFT",),
    "easyspec_paper": ("model.draft=DRAFT",),
    "layer_skip_tree": (),
}
NATIVE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_global_key_value_heads": 1,
    "moe_intermediate_size": 32,
}
"""Whole panels of the kernels."""


def written(directory: Path, name: str, seed: int = 0) -> Path:
    own = {"hidden_size_per_layer_input": 32} if name == "gemma4_small" else {}
    write_checkpoint(directory / f"{name}{seed}", name, seed=seed, **NATIVE, **own)
    return directory / f"{name}{seed}"


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", ["gemma4_small", "gemma4_moe"])
def test_answers_are_those_of_plain_decoding(name: str, native: bool, tmp_path: Path) -> None:
    target, draft = written(tmp_path, name), written(tmp_path, name, seed=1)
    on = f"backend.native={str(native).lower()}"
    plain = answers(pipeline_of(target, "pipeline=vanilla", on), 1, PROMPTS)
    for pipeline, options in PIPELINES.items():
        said = [option.replace("DRAFT", str(draft)) for option in options]
        made = pipeline_of(target, f"pipeline={pipeline}", on, *said)
        assert answers(made, 1, PROMPTS) == plain, pipeline
        assert answers(made, 4, PROMPTS) == plain, pipeline


def test_layers_whose_k_and_v_others_attend_to_are_kept(tmp_path: Path) -> None:
    """By a draft that is cut out of the target, and by drafting without some layers."""
    target = written(tmp_path, "gemma4_small")
    plain = answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)
    for options in (["pipeline=sd_chain", "model.draft=cut"], ["pipeline=layer_skip_chain", "drafter.layers=3"]):
        made = pipeline_of(target, *options)
        assert answers(made, 2, PROMPTS) == plain
    drafter = made.new_engine(1).drafter
    # 2 and 4 are what the last layers attend to
    assert isinstance(drafter, LayerSkipDrafter) and drafter.runner.declaration()["layers"] == [0, 2, 3, 7]


REFUSED: dict[str, tuple[list[str], str]] = {
    "predictor": (["pipeline=alspec"], "layer 0 of this gemma4_text model has a window of 24 tokens, which is not"),
    "skipped": (
        ["pipeline=layer_skip_tree", "drafter.skip=[2]"],
        "drafter.skip: layer 5 attends to K and V of layer 2; keep that one too",
    ),
    "cut": (
        ["pipeline=sd_chain", "model.draft=cut", "model.draft_layers=[0,5]"],
        "layer 5 attends to K and V of layer 2, so that it cannot be run without that one or one like it before",
    ),
    "bounds": (
        ["pipeline=alspec", "error_bounds=true"],
        "error_bounds: they are not estimated for heads of different shapes; leave them out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    target = written(tmp_path, "gemma4_small")
    with pytest.raises(UserError, match=re.escape(message)) as told:
        pipeline_of(target, *options)
    assert "\n" not in str(told.value)


def test_it_is_not_trained_nor_run_on_other_devices() -> None:
    source = ModelTensors("gemma4_small", 0)
    with pytest.raises(UserError, match="task=train_draft does not train heads of different shapes"):
        DraftShape([0, 1]).config(source.config)
    with pytest.raises(UserError, match="with heads of different shapes: backend ttnn has no such part"):
        check_model(source.config)
