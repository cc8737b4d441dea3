"""GGUF files become the checkpoint they were made from, bit for bit, and what transformers' own loader reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from spec_sdk.errors import UserError
from spec_sdk.model import gguf_tensors
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import RopeScaling
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.training.model_card import license_of
from spec_sdk.tree import TokenTree
from tests.checkpoints.gguf_files import MIXTURES, SHAPE, Customize, add_byte_level, write_gguf
from tests.checkpoints.gguf_latents import LATENTS
from tests.support.tiny_checkpoints import LLAMA3_ROPE, checkpoint_tensors

NAMES = ["smollm", "llama2", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_0"])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_equal_transformers(name: str, kind: str, tmp_path: Path) -> None:
    # transformers takes every Qwen3 to have heads of 128, as the released ones do
    shape: Any = {"head_dim": 128} if name == "qwen3" else {}
    original = write_gguf(tmp_path / "m.gguf", name, kind, **shape).state_dict()
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).state_dict()
    for tensor_name in ours.names():
        tensor = ours.tensor(tensor_name).float()
        assert torch.equal(tensor, reference[tensor_name]), tensor_name
        if kind == "F32":
            # of a gain that is stored as 1 + w, the last bits are not
            stored = original[tensor_name]
            is_gain = name.startswith("gemma") and tensor_name.endswith("norm.weight")
            assert torch.equal(tensor, (stored + 1) - 1 if is_gain else stored), tensor_name
    assert "lm_head.weight" in ours.names() or ours.config.tie_embeddings


@pytest.mark.parametrize("named", ["apache-2.0", "  other\nand more ", "", None])
def test_the_license_goes_with_the_weights(named: str | None, tmp_path: Path) -> None:
    def customize(writer: gguf.GGUFWriter) -> None:
        if named is not None:
            writer.add_license(named)

    write_gguf(tmp_path / "m.gguf", "smollm", customize=customize)
    found = license_of(open_checkpoint(str(tmp_path / "m.gguf")))
    expected = {"apache-2.0": "apache-2.0", "  other\nand more ": "other and more"}
    assert found == expected.get(named or "", "not stated beside its files; see where the target comes from")


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_logits_of_gemmas_equal_transformers(name: str, tmp_path: Path) -> None:
    """What GGUF files leave unsaid is as in llama.cpp: which layers have windows, their base, and the scores' scale."""
    same: Any = {} if name == "gemma" else {"query_pre_attn_scalar": SHAPE["head_dim"]}
    reference = write_gguf(tmp_path / "m.gguf", name, num_hidden_layers=7, **same)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    tokens = list(range(3, 63))
    with torch.inference_mode():
        expected_NV = reference(torch.tensor([tokens])).logits[0]
    decoder = load_decoder(checkpoint, torch.device("cpu"), torch.float32)
    session = Session(TorchExecutor(decoder, Ops()))
    ours_NV = session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV
    assert (ours_NV - expected_NV).abs().max() < 1e-4


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_scores_by_model_dim_over_heads(name: str, layers: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", name, num_hidden_layers=layers, hidden_size=96)
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert config.layer_kind(0).attention.scale == (96 // SHAPE["num_attention_heads"]) ** -0.5


def test_gains_in_half_precision_lose_no_digit(tmp_path: Path) -> None:
    """A gain is stored as float32 whatever the matrices are; less one, it stays so."""
    original = write_gguf(tmp_path / "m.gguf", "gemma2", "BF16").state_dict()
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    name = "model.layers.0.post_feedforward_layernorm.weight"
    assert ours.tensor(name).dtype == torch.float32 and ours.tensor("model.embed_tokens.weight").dtype == torch.bfloat16
    assert torch.equal(ours.tensor(name), (original[name] + 1) - 1)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", [name for name in MIXTURES if name not in LATENTS])
def test_experts_are_cut_out_of_their_layers_tensor(name: str, kind: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"mlp_only_layers": []} if name == "qwen2_moe" else {}
    if name not in ("mixtral", "granitemoe"):
        shape |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    # llama.cpp knows no groups in these families, and no window
    if name == "glm4_moe":
        shape |= {"n_group": 1, "topk_group": 1}
    if name == "dots1":
        shape |= {"sliding_window": None}
    model = write_gguf(tmp_path / "m.gguf", name, kind, **shape)
    original = checkpoint_tensors(model)
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    tied = {"lm_head.weight"} if ours.config.tie_embeddings else set()
    assert ours.names() == original.keys() - tied
    for tensor_name in ours.names():
        tensor = ours.tensor(tensor_name).float()
        assert tensor.shape == original[tensor_name].shape
        # Q8_0 rounds to a 127th of the largest of 32
        error = (tensor - original[tensor_name]).abs().max() / original[tensor_name].abs().max()
        assert error <= {"F32": 0.0, "BF16": 2**-8, "Q8_0": 1 / 127}[kind], tensor_name
    theirs = read_config(model.config.to_dict(), "tests")
    assert ours.config.experts == theirs.experts
    if kind != "F32":
        return
    tokens = list(range(3, 40))
    session = Session(TorchExecutor(load_decoder(ours, torch.device("cpu"), torch.float32), Ops()))
    logits_NV = session.score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV
    with torch.inference_mode():
        expected_NV = model(torch.tensor([tokens])).logits[0]
    assert (logits_NV - expected_NV).abs().max() < 1e-4


def test_lengths_that_older_files_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("add_expert_feed_forward_length", "add_expert_shared_feed_forward_length"):
        monkeypatch.setattr(gguf.GGUFWriter, name, lambda writer, length: None)
    write_gguf(tmp_path / "m.gguf", "qwen2_moe", mlp_only_layers=[])
    experts = open_checkpoint(str(tmp_path / "m.gguf")).config.experts
    assert experts is not None and (experts.intermediate_size, experts.shared_intermediate_size) == (24, 40)


def other_gating(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def scaled_weights(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_weights_scale(2.5)


@pytest.mark.parametrize(
    ("customize", "message"), [(other_gating, "not softmax"), (scaled_weights, "expert_weights_scale is not supported")]
)
def test_other_ways_of_routing_are_refused(customize: Customize, message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen3_moe", customize=customize)
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_experts_that_are_not_there(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "mixtral")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "old.gguf").write_bytes(data.replace(b"blk.0.ffn_gate_exps.weight", b"blk.0.ffn_gate.9.00.weight"))
    with pytest.raises(UserError, match="'blk.0.ffn_gate_exps.weight' of all experts is missing"):
        open_checkpoint(str(tmp_path / "old.gguf"))
    (tmp_path / "one.gguf").write_bytes(data.replace(b"blk.1.ffn_up_exps.weight", b"blk.9.ffn_up_exps.weight"))
    with pytest.raises(UserError, match="tensor 'blk.1.ffn_up_exps.weight' is missing"):
        open_checkpoint(str(tmp_path / "one.gguf"))


def test_biases_of_q_and_k_are_reordered_too(tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "m.gguf", "biased_llama").state_dict()
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    assert ours.config.qkv_bias and ours.config.o_bias and ours.config.mlp_bias
    assert all(torch.equal(ours.tensor(name), original[name]) for name in ours.names())


def test_config_comes_from_metadata(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen3")
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert (config.architecture, config.qk_norm, config.head_dim) == ("qwen3", True, SHAPE["head_dim"])
    assert (config.vocab_size, config.max_context) == (384, 512)
    assert config.eos_token_ids == (2,) and config.bos_token_id == 1 and not config.tie_embeddings


def llama3_factors(writer: gguf.GGUFWriter, context: int = 8192) -> None:
    """Llama 3.1's rope scaling as llama.cpp's converter computes it."""
    dim, low, high, factor = SHAPE["head_dim"], 1.0, 4.0, 8.0
    factors = []
    for frequency in 1.0 / (500000.0 ** (np.arange(0, dim, 2, dtype=np.float32) / dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))


@pytest.mark.parametrize("context", [8192, 2048])
def test_llama3_rope_is_recovered_from_its_factors(context: int, tmp_path: Path) -> None:
    rope = {"rope_theta": 500000.0, **LLAMA3_ROPE, "original_max_position_embeddings": context}
    write_gguf(tmp_path / "m.gguf", "llama3", customize=lambda w: llama3_factors(w, context), rope_parameters=rope)
    scaling = open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling
    assert scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, context, context=512)


def test_other_rope_factors_are_kept(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, SHAPE["head_dim"] // 2, dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", customize=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    scaling = open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling
    assert scaling is not None and scaling.kind == "longrope" and scaling.attention_factor == 1.0
    assert scaling.short_factors == scaling.long_factors == tuple(factors.tolist())


def test_rope_factors_of_another_size_are_refused(tmp_path: Path) -> None:
    factors = np.ones(SHAPE["head_dim"], dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", customize=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    with pytest.raises(UserError, match=r"rope_freqs.weight has shape \[16\], not \[8\]"):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("kind", [gguf.RopeScalingType.LINEAR, None], ids=["named", "llama.cpp's default"])
def test_linear_rope_scaling(kind: gguf.RopeScalingType | None, tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        if kind is not None:
            writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)

    write_gguf(tmp_path / "m.gguf", customize=linear)
    assert open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling == RopeScaling(
        "linear", 4.0, original_max_position=512, context=512
    )


@pytest.mark.parametrize("factor", ["scaling.factor", "scale_linear"])
def test_a_factor_of_no_rope_scaling_says_nothing(factor: str, tmp_path: Path) -> None:
    def none(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_float32(f"llama.rope.{factor}", 4.0)

    write_gguf(tmp_path / "m.gguf", customize=none)
    assert open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling is None


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def yarn_as_converted(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_yarn_attn_factor(0.7)
    writer.add_rope_scaling_yarn_beta_fast(4.0)
    writer.add_rope_scaling_yarn_beta_slow(0.5)


def yarn_times_a_factor(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_attn_factors(0.5)


def yarn_log_multiplier(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_rope_scaling_yarn_log_mul(0.7)


TEMPERATURE = 0.1 * math.log(4.0) + 1


@pytest.mark.parametrize(
    ("customize", "differing"),
    [
        (yarn, {}),
        (yarn_as_converted, {"attention_factor": pytest.approx(0.7), "beta_fast": 4.0, "beta_slow": 0.5}),
        (yarn_times_a_factor, {"attention_factor": pytest.approx(0.5 * TEMPERATURE)}),
        (yarn_log_multiplier, {"attention_factor": pytest.approx(TEMPERATURE / (0.07 * math.log(4.0) + 1))}),
    ],
)
def test_yarn(customize: Customize, differing: dict[str, Any], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen2", customize=customize)
    scaling = open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling
    plain = {"original_max_position": 64, "attention_factor": TEMPERATURE, "context": 512}
    assert scaling == RopeScaling("yarn", 4.0, **{**plain, **differing})


def long_factors(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_orig_ctx_len(64)
    for name, first in (("long", 2.0), ("short", 1.0)):
        values = np.arange(first, first + SHAPE["head_dim"] // 2, dtype=np.float32)
        writer.add_tensor(f"rope_factors_{name}.weight", values)


def test_longrope_is_two_tensors(tmp_path: Path) -> None:
    def longrope(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_attn_factors(1.25)
        long_factors(writer)

    write_gguf(tmp_path / "m.gguf", customize=longrope)
    scaling = open_checkpoint(str(tmp_path / "m.gguf")).config.rope_scaling
    assert scaling is not None
    assert scaling.short_factors == tuple(range(1, 9)) and scaling.long_factors == tuple(range(2, 10))
    assert (scaling.kind, scaling.original_max_position, scaling.context) == ("longrope", 64, 512)
    assert scaling.attention_factor == 1.25
    write_gguf(tmp_path / "plain.gguf", customize=long_factors)
    scaling = open_checkpoint(str(tmp_path / "plain.gguf")).config.rope_scaling
    assert scaling is not None and (scaling.kind, scaling.attention_factor) == ("longrope", 1.0)


def more(*names: str) -> Customize:
    """Tensors that a Llama does not have."""

    def add(writer: gguf.GGUFWriter) -> None:
        for name in names:
            writer.add_tensor(name, np.ones(SHAPE["head_dim"], dtype=np.float32))

    return add


def divisors_and_yarn(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    llama3_factors(writer)


def divisors_and_a_factor(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_factor(4.0)
    llama3_factors(writer)


def divisors_and_longrope(writer: gguf.GGUFWriter) -> None:
    long_factors(writer)
    llama3_factors(writer)


def longrope_without_factors(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)


def unknown_scaling(writer: gguf.GGUFWriter) -> None:
    writer.add_string("llama.rope.scaling.type", "yarm")


def experts(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("qwen2.expert_count", 8)


@pytest.mark.parametrize(
    ("customize", "message"),
    [
        (unknown_scaling, "rope scaling 'yarm', did you mean 'yarn'"),
        (divisors_and_yarn, r"scales rotary positions twice \(yarn and rope_freqs.weight\)"),
        (divisors_and_a_factor, r"scales rotary positions twice \(linear and rope_freqs.weight\)"),
        (divisors_and_longrope, r"twice \(rope_freqs.weight and rope_factors_long.weight\)"),
        (more("rope_freqs.scale"), "'rope_freqs.scale' would be left out"),
        (longrope_without_factors, "has LongRoPE's scaling but no rope_factors_long.weight"),
    ],
)
def test_unsupported_features_are_refused(customize: Customize, message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", customize=customize)
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["blk.0.attn_q_norm.weight"], "tensor 'blk.0.attn_q_norm.weight' would be left out.* 'llama' has none such"),
        (["blk.2.attn_q.weight", "output.bias"], "tensor 'blk.2.attn_q.weight' and 1 more would be left out"),
    ],
)
def test_tensors_that_would_be_left_out_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    """llama.cpp refuses them too: a model without them gives other answers."""
    write_gguf(tmp_path / "m.gguf", customize=more(*names))
    with pytest.raises(UserError, match=message):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_what_says_nothing_of_the_model_is_left_out(tmp_path: Path) -> None:
    """Inverse frequencies of old files, and scales for kernels that round activations."""
    write_gguf(tmp_path / "m.gguf", customize=more("blk.0.attn_rot_embd.weight", "blk.0.attn_q.input_scale"))
    open_checkpoint(str(tmp_path / "m.gguf"))


def test_qwen3_with_biases(tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "m.gguf", "qwen3", attention_bias=True).state_dict()
    ours = open_checkpoint(str(tmp_path / "m.gguf"))
    assert ours.config.qkv_bias and ours.config.o_bias
    assert all(torch.equal(ours.tensor(name), original[name]) for name in ours.names())


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_0"])
def test_scales_of_whole_tensors_multiply_them(kind: str, tmp_path: Path) -> None:
    """As llama.cpp multiplies products of weights by them; files in NVFP4 have one for each matrix."""

    def scales(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.scale", np.array([0.5], dtype=np.float32))

    write_gguf(tmp_path / "plain.gguf", kind=kind)
    write_gguf(tmp_path / "scaled.gguf", kind=kind, customize=scales)
    plain, scaled = (open_checkpoint(str(tmp_path / f"{name}.gguf")) for name in ("plain", "scaled"))
    for name in plain.names():
        factor = 0.5 if name == "model.layers.0.self_attn.q_proj.weight" else 1.0
        assert torch.equal(scaled.tensor(name).float(), plain.tensor(name).float() * factor)


def test_every_expert_has_a_scale_of_its_own(tmp_path: Path) -> None:
    count = write_gguf(tmp_path / "plain.gguf", "qwen3_moe").config.num_experts

    def scales(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.1.ffn_up_exps.scale", np.arange(1, count + 1, dtype=np.float32))

    write_gguf(tmp_path / "scaled.gguf", "qwen3_moe", customize=scales)
    plain, scaled = (open_checkpoint(str(tmp_path / f"{name}.gguf")) for name in ("plain", "scaled"))
    for expert in range(count):
        name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        assert torch.equal(scaled.tensor(name), plain.tensor(name) * (expert + 1))


def test_a_scale_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", customize=more("blk.0.attn_q.scale"))
    with pytest.raises(UserError, match=r"blk.0.attn_q.scale is F32 of shape \[16\], not F32 of \[1\]"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_a_quantization_that_cannot_be_read_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", kind="Q8_0")

    def unknown(stored: object, kind: str) -> None:
        raise NotImplementedError(kind)

    monkeypatch.setattr(gguf_tensors, "dequantized", unknown)
    with pytest.raises(UserError, match="tensor 'token_embd.weight' is stored as Q8_0, which cannot be read"):
        open_checkpoint(str(tmp_path / "m.gguf"))
    assert "converting" not in capsys.readouterr().err


def test_a_dense_family_has_no_experts(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen2", customize=experts)
    with pytest.raises(UserError, match="mixture of experts .qwen2.expert_count. is not supported"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_unsupported_architecture_names_the_nearest(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2vl")
    add_byte_level(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="unsupported GGUF architecture 'qwen2vl', did you mean 'qwen2'"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_missing_tensor_and_unknown_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "renamed.gguf").write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight"))
    with pytest.raises(UserError, match=r"tensor 'blk.1.ffn_up.weight' is missing"):
        open_checkpoint(str(tmp_path / "renamed.gguf"))
    (tmp_path / "bert.gguf").write_bytes(data.replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0bert"))
    with pytest.raises(UserError, match="unsupported tokenizer 'bert'; there are: gemma4, gpt2, llama"):
        open_checkpoint(str(tmp_path / "bert.gguf"))
