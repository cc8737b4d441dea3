"""GGUF files of models that attend to latents, most of which llama.cpp calls deepseek2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from tests.checkpoints.gguf_files import write_gguf
from tests.checkpoints.gguf_latents import BY_PROBABILITY, LATENTS
from tests.checkpoints.test_gguf_families import TOKENS, dense_copy, logits_of
from tests.support.tiny_checkpoints import DEEPSEEK_YARN, checkpoint_tensors

SIZES: dict[str, Any] = {
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
}
READ_AS = {"glm4_moe_lite": "deepseek_v3"}


def written(path: Path, name: str, kind: str = "F32", **others: Any) -> PreTrainedModel:
    # the files have pairs side by side, and no biases
    read: dict[str, Any] = {"rope_interleave": True, "attention_bias": False, "first_k_dense_replace": 1}
    if name in BY_PROBABILITY:
        read |= {"n_group": 1, "topk_group": 1}
    if name == "mistral4":
        # what transformers finds the rotated part by
        read |= {"head_dim": 48}
    if name == "deepseek_v3":
        # as published; a file says the second alone
        read |= {"rope_parameters": {**DEEPSEEK_YARN["rope_parameters"], "mscale": 0.9}}
    return write_gguf(path, name, kind, num_hidden_layers=3, **{**SIZES, **read, **others})


@pytest.mark.parametrize("apart", [True, False], ids=["", "in one tensor"])
@pytest.mark.parametrize("name", LATENTS)
def test_logits_equal_transformers(name: str, apart: bool, tmp_path: Path) -> None:
    reference = written(tmp_path / "m.gguf", name, latents_apart=apart)
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4 * expected_NV.std()
    found = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert found.architecture == READ_AS.get(name, name)
    assert found.latent is not None and found.latent.k_b_transposed is apart


@pytest.mark.parametrize("name", LATENTS)
def test_tensors_are_the_models(name: str, tmp_path: Path) -> None:
    original = checkpoint_tensors(written(tmp_path / "m.gguf", name, latents_apart=False))
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    tied = {"lm_head.weight"} if ours.config.tie_embeddings else set()
    assert ours.names() == original.keys() - tied
    assert all(torch.equal(ours.tensor(key), original[key]) for key in ours.names())


def test_matrices_in_few_bits_stay_so(tmp_path: Path) -> None:
    """Those of single heads, too."""
    written(tmp_path / "m.gguf", "deepseek_v3", "Q8_0")
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    matrices = [key for key in ours.names() if key.endswith("proj.weight")]
    assert len(matrices) > 20 and all(ours.quantized(key) is not None for key in matrices)
    decoder = load_decoder(ours, torch.device("cpu"), torch.float32)
    of_latents = decoder.blocks[1].latents
    assert of_latents is not None and all(part.quantized is not None for part in of_latents.projections)
    expected_NV = logits_of(dense_copy(tmp_path, ours))
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-3 * expected_NV.std()


def test_groups_of_experts_chosen_by_probability_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", "deepseek_v2", n_group=4)
    with pytest.raises(UserError, match="deepseek2.expert_group_count is not supported in this family"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_the_first_files_of_glm_4_7_flash_do_not_say_how_experts_are_scored(tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["deepseek2.expert_gating_func"]

    written(tmp_path / "m.gguf", "glm4_moe_lite", customize=say)
    experts = open_checkpoint(str(tmp_path / "m.gguf")).config.experts
    assert experts is not None and experts.corrected and experts.routing.scored_by == "sigmoid"


@pytest.mark.parametrize("modules", [3, 5])
def test_a_file_of_nothing_but_prediction_modules_is_told_by_its_keys(modules: int, tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", "deepseek_v3", customize=lambda writer: writer.add_nextn_predict_layers(modules))
    line = f"deepseek2.nextn_predict_layers is {modules}, and must be less than deepseek2.block_count, 3$"
    with pytest.raises(UserError, match=line):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_queries_that_grow_beyond_no_context_are_told_by_their_key(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    say = gguf.GGUFWriter.add_attn_temperature_scale
    written(tmp_path / "m.gguf", "deepseek_v3", customize=lambda writer: say(writer, 0.1), **plain)
    line = "deepseek2.attention.temperature_scale is 0.1, .* deepseek2.rope.scaling.type is 'none', not 'yarn'$"
    with pytest.raises(UserError, match=line):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_texts_are_no_longer_than_queries_do_not_grow(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", "mistral4")
    assert open_checkpoint(str(tmp_path / "m.gguf")).config.max_context == 512
    written(tmp_path / "large.gguf", "deepseek_v3", customize=lambda writer: writer.add_attn_temperature_scale(0.1))
    assert open_checkpoint(str(tmp_path / "large.gguf")).config.max_context == 32
