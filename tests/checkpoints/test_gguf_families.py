"""GGUF files of what is nearly a Llama: rows in another order, partial rotation, multipliers, joined matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.checkpoints.gguf_files import write_gguf
from tests.support.tiny_checkpoints import YARN_ROPE, checkpoint_tensors

NORMED_AFTER = ["olmo2", "olmo3", "olmoe", "exaone4"]
"""Or with norms of all heads together."""
CORRECTED = ["ernie4_5_moe", "glm4_moe", "dots1"]
"""Whose experts are chosen with a correction."""
LIKE_LLAMA = ["phi3", "phi4", "glm4", "ernie4_5", "smollm3", "seed_oss", "granite", "granitemoe"]
NAMES = [*LIKE_LLAMA, *NORMED_AFTER, *CORRECTED, "gpt_oss", "ministral3"]
TOKENS = list(range(3, 63))
LONG_PHI: dict[str, Any] = {
    "rope_parameters": {
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.5, 7.0, 9.0],
    }
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "phi4": LONG_PHI,
    "olmo3": {"rope_parameters": None},
    "olmo2": {"num_key_value_heads": 2, "attention_bias": False},
    "smollm3": {"use_sliding_window": False},
    "ernie4_5_moe": {"moe_intermediate_size": 32, "moe_layer_interval": 1},
    "glm4_moe": {"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1},
    "dots1": {"moe_intermediate_size": 32, "max_window_layers": 5},
}


def written(path: Path, name: str, kind: str = "F32") -> Any:
    """A model of five layers, so that one of a SmolLM3 is not rotated; it sees all of a text there, as a dots.llm1
    does. There is one group of experts: llama.cpp knows no more here.
    """
    overrides = OVERRIDES.get(name, {})
    return write_gguf(path, name, kind, num_hidden_layers=5, **overrides)


def logits_of(path: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    decoder = load_decoder(open_checkpoint(str(path)), torch.device("cpu"), dtype)
    return Session(TorchExecutor(decoder, Ops())).score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = written(tmp_path / "m.gguf", name)
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4
    assert expected_NV.std() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_the_models(name: str, tmp_path: Path) -> None:
    """Cut out of what they lie in, and in Hugging Face's order."""
    original = checkpoint_tensors(written(tmp_path / "m.gguf", name))
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    tied = {"lm_head.weight"} if ours.config.tie_embeddings else set()
    assert ours.names() == original.keys() - tied
    assert all(torch.equal(ours.tensor(key), original[key]) for key in ours.names())


@pytest.mark.parametrize("name", NAMES)
def test_matrices_in_few_bits_stay_so(name: str, tmp_path: Path) -> None:
    """Of a joined matrix each part, and the decoder that multiplies them is the one of the same weights expanded."""
    original = checkpoint_tensors(written(tmp_path / "m.gguf", name, "Q8_0"))
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    matrices = [key for key in ours.names() if key.endswith("proj.weight")]
    assert matrices
    for key in matrices:
        matrix = ours.quantized(key)
        assert matrix is not None and matrix.bits == 8
        expanded = matrix.dequantized(torch.float32)
        assert torch.equal(expanded, ours.tensor(key))
        assert (expanded - original[key]).abs().max() <= original[key].abs().max() / 127
    decoder = load_decoder(ours, torch.device("cpu"), torch.float32)
    assert decoder.blocks[0].qkv.quantized is not None
    expected_NV = logits_of(dense_copy(tmp_path, ours))
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-3 * expected_NV.std()


def dense_copy(directory: Path, checkpoint: Any) -> Path:
    """The same weights, in floating point."""
    from safetensors.torch import save_file

    made = directory / "dense"
    made.mkdir()
    for file in checkpoint.directory.iterdir():
        if file.suffix != ".safetensors":
            (made / file.name).write_bytes(file.read_bytes())
    tensors = {key: checkpoint.tensor(key).float().contiguous().clone() for key in checkpoint.names()}
    save_file(tensors, made / "model.safetensors")
    return made


def test_a_granite_4_of_llama_cpp_s_converter(tmp_path: Path) -> None:
    """It says of every layer how many KV heads it has, as of models in which not all have attention."""

    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["granite.attention.head_count_kv"]
        writer.add_head_count_kv([2, 2])
        writer.add_rope_scaling_finetuned(True)
        writer.add_expert_count(0)
        writer.add_expert_used_count(0)

    reference = write_gguf(tmp_path / "m.gguf", "granite", customize=say)
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4


def test_kv_heads_that_differ_are_refused(tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["granite.attention.head_count_kv"]
        writer.add_head_count_kv([2, 0])

    write_gguf(tmp_path / "m.gguf", "granite", customize=say)
    with pytest.raises(UserError, match="granite.attention.head_count_kv differs between layers"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_the_text_of_a_glm_that_sees_is_refused(tmp_path: Path) -> None:
    """Its rows of Q and K are in another order."""
    write_gguf(tmp_path / "m.gguf", "glm4", customize=lambda writer: writer.add_rope_dimension_sections([2, 1, 1, 0]))
    with pytest.raises(UserError, match="rope.dimension_sections"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_a_granite_without_rotary_positions_is_refused(tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_finetuned(False)

    write_gguf(tmp_path / "m.gguf", "granite", customize=say)
    with pytest.raises(UserError, match="without rotary positions"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_a_granite_that_names_no_scale_of_scores_has_the_usual_one(tmp_path: Path) -> None:
    def forget(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["granite.attention.scale"]

    write_gguf(tmp_path / "m.gguf", "granite", customize=forget)
    scale = open_checkpoint(str(tmp_path / "m.gguf")).config.attention_scale
    assert scale == pytest.approx(16**-0.5)


def test_a_glm_with_a_prediction_module(tmp_path: Path) -> None:
    """llama.cpp's converter counts it among the blocks, and writes it; whatever it is, it is no layer of the model."""

    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["glm4moe.block_count"]
        writer.add_block_count(3)
        writer.add_nextn_predict_layers(1)
        for name in ("nextn.eh_proj", "nextn.enorm", "attn_norm", "ffn_gate_exps"):
            writer.add_tensor(f"blk.2.{name}.weight", np.zeros(64, np.float32))

    reference = write_gguf(tmp_path / "m.gguf", "glm4_moe", customize=say, **OVERRIDES["glm4_moe"])
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("glm4_moe", "glm4moe.rope.dimension_sections", 5, "rotary positions of several kinds"),
        ("glm4_moe", "glm4moe.leading_dense_block_count", 2, "no layer has experts .glm4moe.leading_dense_block_count"),
        (
            "glm4_moe",
            "glm4moe.nextn_predict_layers",
            2,
            "nextn_predict_layers is 2, and must be less than glm4moe.block_",
        ),
        ("glm4_moe", "glm4moe.expert_count", 1, "glm4moe.expert_count is 1, which is no mixture"),
        ("ernie4_5_moe", "ernie4_5-moe.interleave_moe_layer_step", 2**32 - 1, "no layer has experts"),
        ("exaone4", "exaone4.attention.sliding_window_pattern", 0, "does not say of each of 2 layers whether it has"),
    ],
)
def test_what_a_file_cannot_say(name: str, key: str, value: int, message: str, tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        writer.add_uint32(key, value)

    write_gguf(tmp_path / "m.gguf", name, customize=say, **{**OVERRIDES.get(name, {}), "num_hidden_layers": 2})
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_an_olmo_3_whose_positions_are_stretched(tmp_path: Path) -> None:
    """Only those of layers without a window are."""

    def say(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(YARN_ROPE["factor"])
        writer.add_rope_scaling_orig_ctx_len(YARN_ROPE["original_max_position_embeddings"])

    kinds = {"rope_theta": 5e5, **YARN_ROPE}, {"rope_theta": 5e5, "rope_type": "default"}
    ropes = dict(zip(("full_attention", "sliding_attention"), kinds, strict=True))
    reference = write_gguf(tmp_path / "m.gguf", "olmo3", customize=say, num_hidden_layers=5, rope_parameters=ropes)
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-4
