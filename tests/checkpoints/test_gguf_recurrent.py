"""GGUF files of models with recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.recurrent.decoder import RecurrentDecoder
from spec_sdk.ops.linear import JoinedProjection
from tests.checkpoints.gguf_files import write_gguf
from tests.checkpoints.gguf_recurrent import DELTA_SIZES, TILED, multiplied, tiled
from tests.checkpoints.test_gguf_families import TOKENS, dense_copy, logits_of
from tests.support.tiny_checkpoints import checkpoint_tensors

SPACES: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "shared_intermediate_size": 64}
FALCON: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128}
NEMOTRON: dict[str, Any] = {"num_hidden_layers": 7, "mamba_num_heads": 8, "mamba_head_dim": 16}
ONE_GROUP: dict[str, Any] = {"hybrid_override_pattern": "MEM*EME", "n_group": 1, "topk_group": 1}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64}
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("qwen3_5", DELTA_SIZES),
    "qwen3_5, tiled": ("qwen3_5", TILED),
    "qwen3_5_moe": ("qwen3_5_moe", DELTA_SIZES),
    "qwen3_5_moe, tiled": ("qwen3_5_moe", TILED),
    "qwen3_next": ("qwen3_next", {**TILED, "mlp_only_layers": []}),
    "lfm2": ("lfm2", {}),
    "granite4_h": ("granite4_h", SPACES),
    "granite4_moe": ("granite4_moe", SPACES),
    "falcon_h1": ("falcon_h1", FALCON),
    "normed falcon_h1": ("normed_falcon_h1", {**FALCON, "tie_word_embeddings": False}),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "nemotron_h_moe": ("nemotron_h_moe", {**NEMOTRON, **EXPERTS, **ONE_GROUP}),
    "lfm2_moe": ("lfm2_moe", {"moe_intermediate_size": 32}),
}


def written(path: Path, name: str, kind: str | Callable[[str], str] = "F32", **options: Any) -> Any:
    family, sizes = FILES[name]
    return write_gguf(path, family, kind, **{"num_hidden_layers": 5, **sizes, **options})


def assert_logits_equal(path: Path, reference: Any) -> None:
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([TOKENS])).logits[0]
    assert (logits_of(path) - expected_NV).abs().max() < 1e-4
    assert expected_NV.std() > 0.1


@pytest.mark.parametrize("name", FILES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    assert_logits_equal(tmp_path / "m.gguf", written(tmp_path / "m.gguf", name))


@pytest.mark.parametrize("name", FILES)
def test_tensors_are_the_models(name: str, tmp_path: Path) -> None:
    """But for the order of value heads and multipliers, which stay the file's."""
    model = written(tmp_path / "m.gguf", name)
    original, ours = checkpoint_tensors(model), open_checkpoint(str(tmp_path / "m.gguf"))
    tied = {"lm_head.weight"} if ours.config.tie_embeddings else set()
    assert ours.names() == original.keys() - tied
    assert ours.config.experts == read_config(model.config.to_dict(), "tests").experts
    for key in ours.names():
        expected = original[key]
        if "tiled" in name and ".linear_attn." in key:
            expected = torch.from_numpy(tiled(key, expected.numpy(), model.config))
        if "falcon" in name:
            expected = torch.from_numpy(multiplied(key, expected.numpy(), model.config))
        # a gain less one, and what is stored as an exponential, lose a last digit
        torch.testing.assert_close(ours.tensor(key), expected, rtol=1e-6, atol=1e-6)


def unlike(name: str) -> str:
    """No form holds Q6_K beside Q8_0."""
    return "Q6_K" if name.endswith(("attn_gate.weight", "attn_v.weight")) else "Q8_0"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", unlike], ids=["Q8_0", "Q6_K", "unlike"])
def test_matrices_in_few_bits_stay_so(name: str, kind: Any, tmp_path: Path) -> None:
    of_experts = ("moe_intermediate_size", "shared_expert_intermediate_size")
    wide = {"hidden_size": 256, "num_attention_heads": 16, "intermediate_size": 256}
    wide |= {key: 256 for key in of_experts if key in FILES[name][1]}
    wide |= {"mamba_n_heads": 32, "shared_intermediate_size": 256} if "granite" in name else {}
    wide |= {"mamba_n_heads": 16, "mamba_d_ssm": 256} if "falcon" in name else {}
    family, sizes = FILES[name]
    sizes = {**sizes, "linear_key_head_dim": 128, "linear_value_head_dim": 128} if "qwen" in name else sizes
    wide |= {"mamba_num_heads": 16, "moe_shared_expert_intermediate_size": 256} if "nemotron" in name else {}
    write_gguf(tmp_path / "m.gguf", family, kind, **{"num_hidden_layers": 5, **sizes, **wide})
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    decoder = load_decoder(ours, torch.device("cpu"), torch.float32)
    assert isinstance(decoder, RecurrentDecoder)
    qkv = decoder.blocks[decoder.attending[0]].qkv.parts[-1]
    assert (qkv.quantized is not None) == (kind is not unlike)
    if "qwen" in name:
        # q, k and v, maybe with the gate; what decays and gains are made of is in floating point
        apart = [True, True, False] if kind is unlike else [True, False]
        qkv = decoder.blocks[0].qkv
        assert isinstance(qkv, JoinedProjection)
        assert [part.quantized is not None for part in qkv.parts] == apart
    expected_NV = logits_of(dense_copy(tmp_path, ours))
    assert (logits_of(tmp_path / "m.gguf") - expected_NV).abs().max() < 1e-3 * expected_NV.std()


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe, tiled", "qwen3_next"])
def test_a_prediction_module_is_no_layer_of_the_model(name: str, tmp_path: Path) -> None:
    """llama.cpp's converter counts it among the blocks."""
    architecture = {"qwen3_5": "qwen35", "qwen3_next": "qwen3next"}.get(name, "qwen35moe")

    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0][f"{architecture}.block_count"]
        writer.add_block_count(6)
        writer.add_nextn_predict_layers(1)
        writer.kv_data[0][f"{architecture}.attention.recurrent_layers"].value.append(False)
        for part in ("nextn.eh_proj", "nextn.enorm", "attn_norm", "attn_q"):
            writer.add_tensor(f"blk.5.{part}.weight", np.zeros(64, np.float32))

    assert_logits_equal(tmp_path / "m.gguf", written(tmp_path / "m.gguf", name, customize=say))


def test_a_prediction_module_of_a_nemotron_is_none_either(tmp_path: Path) -> None:
    """It is one more block, with attention and experts."""

    def say(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["nemotron_h_moe.block_count"]
        writer.add_block_count(8)
        writer.add_nextn_predict_layers(1)
        writer.kv_data[0]["nemotron_h_moe.attention.head_count_kv"].value.append(2)
        writer.kv_data[0]["nemotron_h_moe.feed_forward_length"].value.append(32)
        for part in ("nextn.eh_proj", "attn_norm", "attn_q", "ffn_gate_inp"):
            writer.add_tensor(f"blk.7.{part}.weight", np.zeros(64, np.float32))

    assert_logits_equal(tmp_path / "m.gguf", written(tmp_path / "m.gguf", "nemotron_h_moe", customize=say))


def test_a_file_that_says_how_many_layers_lie_between(tmp_path: Path) -> None:
    """As the first files did."""

    def forget(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["qwen35.attention.recurrent_layers"]

    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"]
    reference = written(tmp_path / "m.gguf", "qwen3_5", customize=forget, layer_types=kinds)
    assert_logits_equal(tmp_path / "m.gguf", reference)


def test_a_nemotron_whose_epsilon_has_another_name(tmp_path: Path) -> None:
    """As files have it whose config.json says it once."""

    def forget(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["nemotron_h.attention.layer_norm_rms_epsilon"]

    reference = written(tmp_path / "m.gguf", "nemotron_h", customize=forget, layer_norm_epsilon=0.01)
    assert_logits_equal(tmp_path / "m.gguf", reference)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("qwen3_5", "qwen35.attention.recurrent_layers", [True] * 4, "does not say of each of 5 layers whether it is"),
        ("qwen3_5", "qwen35.ssm.group_count", 3, "linear_num_value_heads is 2, which 3 key heads do not share evenly"),
        ("qwen3_5", "qwen35.ssm.state_size", None, "no qwen35.ssm.state_size"),
        ("qwen3_5", "qwen35.feed_forward_length", None, "no qwen35.feed_forward_length"),
        ("qwen3_5_moe", "qwen35moe.expert_count", None, "has no qwen35moe.expert_count"),
        ("qwen3_next", "qwen3next.ssm.group_count", 4, "is 6, which 4 key heads do not share evenly"),
        ("qwen3_next", "qwen3next.expert_count", None, "has no qwen3next.expert_count"),
        ("lfm2", "lfm2.attention.head_count_kv", 2, "does not list the key-value heads of every layer"),
        ("lfm2", "lfm2.attention.head_count_kv", [0, 0, 2, 0, 1], "differs between layers with attention"),
        ("lfm2", "lfm2.attention.head_count_kv", [0, 0, 2, 0], "differs between layers with attention"),
        ("lfm2_moe", "lfm2moe.expert_gating_func", 1, "expert_gating_func is not sigmoid"),
        ("lfm2_moe", "lfm2moe.leading_dense_block_count", 5, "no layer has experts"),
        ("lfm2", "lfm2.shortconv.l_cache", None, "no lfm2.shortconv.l_cache"),
        ("granite4_h", "granitehybrid.attention.head_count_kv", 2, "does not list the key-value heads of every layer"),
        (
            "granite4_h",
            "granitehybrid.attention.head_count_kv",
            [0, 0, 2, 0],
            "differs between layers with attention",
        ),
        ("granite4_h", "granitehybrid.ssm.group_count", 3, "in 3 groups do not make up"),
        ("granite4_moe", "granitehybrid.ssm.state_size", None, "no granitehybrid.ssm.state_size"),
        ("falcon_h1", "falcon-h1.ssm.group_count", 3, "in 3 groups do not make up"),
        ("falcon_h1", "falcon-h1.ssm.inner_size", None, "no falcon-h1.ssm.inner_size"),
        ("nemotron_h", "nemotron_h.feed_forward_length", 96, "does not list what each of 7 layers has"),
        ("nemotron_h", "nemotron_h.feed_forward_length", [0, 96, 0, 0, 0, 48, 0], "differs between layers that have"),
        ("nemotron_h", "nemotron_h.attention.head_count_kv", [0, 0, 2], "does not list what each of 7 layers has"),
        ("nemotron_h", "nemotron_h.attention.head_count_kv", [0] * 7, "differs between layers that have any"),
        ("nemotron_h_moe", "nemotron_h_moe.expert_count", None, "has no nemotron_h_moe.expert_count"),
        ("nemotron_h_moe", "nemotron_h_moe.moe_latent_size", 16, "experts of a latent size"),
        ("nemotron_h_moe", "nemotron_h_moe.expert_group_count", 2, "expert_group_count is not supported"),
    ],
)
def test_what_a_file_cannot_say(name: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_uint32(key, value)

    written(tmp_path / "m.gguf", name, customize=say)
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))
