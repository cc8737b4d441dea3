"""Rotary positions under every kind of scaling: cosines, sines and logits are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import ModelConfig, Rope
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Models
from spec_sdk.model.rope import RotaryTable
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import LLAMA3_ROPE, SHAPE, VOCABULARY, write_checkpoint

CPU = torch.device("cpu")
TRAINED = 512
"""max_position_embeddings of the tiny models."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.25, 1.5],
    "long_factor": [1.0, 2.5, 7.0, 20.0],
    "original_max_position_embeddings": 64,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3_ROPE,
    "yarn": YARN,
    "yarn_less_than_trained": {**YARN, "original_max_position_embeddings": 1024},
    "yarn_betas": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5},
    "yarn_betas_of_zero": {**YARN, "beta_fast": 0.0, "beta_slow": None},
    "yarn_not_truncated": {**YARN, "truncate": False},
    "yarn_attention_factor": {**YARN, "attention_factor": 0.7},
    "yarn_mscale": {**YARN, "mscale": 1.5, "mscale_all_dim": 0.7},
    "yarn_mscale_alone": {**YARN, "mscale": 1.5},
    "yarn_factor_from_lengths": {**YARN, "factor": None},
    "yarn_shrinking": {**YARN, "factor": 0.5},
    "longrope": LONGROPE,
    "longrope_factor": {**LONGROPE, "factor": 3.0},
    "longrope_attention_factor": {**LONGROPE, "attention_factor": 1.3},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
}


def config_of(scaling: dict[str, Any], **changes: Any) -> tuple[Any, ModelConfig]:
    """transformers' configuration of a tiny Llama with heads of 8, and ours."""
    theirs = CONFIG_MAPPING["llama"](**{**SHAPE, **changes, "rope_parameters": {"rope_theta": 1e4, **scaling}})
    return theirs, read_config(theirs.to_dict(), "tests")


def table(config: ModelConfig) -> RotaryTable:
    return RotaryTable(config.head_dim, Rope(config.rope_theta, config.rope_scaling), CPU, torch.float32)


def assert_rotations_equal(theirs: Any, ours: ModelConfig, length: int) -> None:
    """Those of a text of ``length`` tokens that transformers is given at once."""
    position_1N = torch.arange(length)[None]
    cos_1ND, sin_1ND = LlamaRotaryEmbedding(theirs)(torch.zeros(1), position_1N)
    ours_cos, ours_sin = table(ours).at(position_1N, length)
    assert (ours_cos[:, :, 0] - cos_1ND).abs().max() < 2e-4
    assert (ours_sin[:, :, 0] - sin_1ND).abs().max() < 2e-4
    # at the first position nothing but the attention factor is left
    assert torch.equal(ours_cos[0, 0, 0], cos_1ND[0, 0])


@pytest.mark.parametrize("name", SCALINGS)
def test_rotations_equal_transformers(name: str) -> None:
    theirs, ours = config_of(SCALINGS[name])
    assert ours.max_context == {"yarn_less_than_trained": 4096}.get(name, TRAINED)
    assert_rotations_equal(theirs, ours, ours.max_context)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "default"])
def test_every_scaling_is_one(name: str) -> None:
    """Beyond the trained positions, where that is what it takes."""
    plain, scaled = config_of({"rope_type": "default"})[1], config_of(SCALINGS[name])[1]
    scaled = scaled.within(scaled.longest_context)
    position_1N = torch.arange(TRAINED)[None]
    ours, theirs = (table(config).at(position_1N, TRAINED)[0] for config in (plain, scaled))
    assert (ours - theirs).abs().max() > 0.2


@pytest.mark.parametrize("length", [40, 64, 65, 100])
def test_longrope_goes_by_the_longest_text_of_the_run(length: int) -> None:
    theirs, ours = config_of(LONGROPE)
    assert_rotations_equal(theirs, ours.within(length), length)
    # not by how long a text has become: its keys stay as they are
    whole, part = (table(ours.within(100)).at(torch.arange(40)[None], positions) for positions in (100, 40))
    assert all(torch.equal(a, b) for a, b in zip(whole, part, strict=True))


@pytest.mark.parametrize("length", [100, TRAINED, TRAINED + 1, 3 * TRAINED])
def test_dynamic_goes_by_the_longest_text_of_the_run(length: int) -> None:
    theirs, ours = config_of({"rope_type": "dynamic", "factor": 3.0})
    assert ours.longest_context == 3 * TRAINED
    assert_rotations_equal(theirs, ours.within(length), length)


def test_how_far_positions_reach() -> None:
    assert config_of({"rope_type": "default"})[1].longest_context == TRAINED
    assert config_of({"rope_type": "linear", "factor": 2.5})[1].longest_context == 1280
    assert config_of(YARN)[1].longest_context == TRAINED
    mistral = {"model_type": "mistral", "sliding_window": 100, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read_config({**SHAPE, **mistral}, "tests").longest_context == 2 * SHAPE["max_position_embeddings"]


REACHING = [(name, None) for name in ("llama3", "yarn", "yarn_betas", "longrope")]


@pytest.mark.parametrize("model", ["llama2", "qwen2"])
@pytest.mark.parametrize(("name", "bound"), [*REACHING, ("linear", 150), ("longrope", 150), ("dynamic", 150)])
def test_logits_beyond_the_original_context(name: str, model: str, bound: int | None, tmp_path: Path) -> None:
    """150 tokens, in chunks and one by one, of models trained for 64: the same as transformers gives them at once."""
    positions = 64 if name in ("linear", "dynamic") else TRAINED
    rope = {"rope_theta": 1e4, **SCALINGS[name]}
    reference = write_checkpoint(tmp_path, model, rope_parameters=rope, max_position_embeddings=positions)
    tokens = torch.randint(3, VOCABULARY, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([tokens])).logits[0]
    checkpoint = open_checkpoint(str(tmp_path))
    if bound is not None:
        checkpoint = checkpoint.within(bound)
    session = Session(TorchExecutor(load_decoder(checkpoint, CPU, torch.float32), Ops()))
    session.prefill(0, tokens[:30])
    chain = session.score([0], [TokenTree.chain(tokens[30], tokens[31:145])])[0].logits_NV
    session.commit([0], [range(115)])
    rest = []
    for token in tokens[145:]:
        rest.append(session.score([0], [TokenTree.root_only(token)])[0].logits_NV)
        session.commit([0], [[0]])
    assert (torch.cat((chain, *rest)) - expected_NV[30:]).abs().max() < 2e-4
    with pytest.raises(UserError, match="lies outside the model's context"):
        session.prefill(0, [5] * session.context)


def test_the_option_model_context(tmp_path: Path) -> None:
    scaling = {"rope_theta": 1e4, **LONGROPE}
    write_checkpoint(tmp_path / "target", "llama2", rope_parameters=scaling)
    write_checkpoint(tmp_path / "draft", "llama2", max_position_embeddings=48)

    def models(context: int | None) -> Models:
        load = lambda source, dtype: TorchExecutor(load_decoder(source, CPU, dtype), Ops())  # noqa: E731
        target, draft = str(tmp_path / "target"), str(tmp_path / "draft")
        return Models(target, draft, "auto", load, Ops(), CPU, torch.float32, context=context)

    assert models(None).target.executor.config.max_context == TRAINED
    short = models(60)
    assert short.target.executor.config.max_context == 60
    assert short.target.executor.config.rope_scaling == config_of(LONGROPE)[1].within(60).rope_scaling
    assert short.draft().executor.config.max_context == 48
    assert short.draft("cut").executor.config.rope_scaling == short.target.executor.config.rope_scaling
    with pytest.raises(UserError, match="model.context: 513 tokens are more than target has positions for; use 512"):
        models(TRAINED + 1)


def test_su_is_the_first_name_of_longrope() -> None:
    """Phi-3's files: the original context beside the scaling."""
    theirs, new = config_of(LONGROPE)
    scaling = {key: value for key, value in LONGROPE.items() if "factor" in key}
    values = {**theirs.to_dict(), "rope_scaling": {"type": "su", **scaling}, "original_max_position_embeddings": 64}
    del values["rope_parameters"]
    assert read_config(json.loads(json.dumps(values)), "tests") == new
