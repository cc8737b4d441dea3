"""What config.json may say of recurrent layers, and checkpoints that hold more than such a text model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import Experts, GatedDeltaNets, ModelConfig, ShortConvolutions, StateSpaces
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.feed_forward import Routing
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import ARCHITECTURES, SHAPE, tiny_tokenizer

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}
PATTERN = {"hybrid_override_pattern": "M-MM*E"}
TOKENS = list(range(3, 63))


def read(model_type: str, **values: Any) -> ModelConfig:
    return read_config({"model_type": model_type, **SIZES, **values}, "config.json")


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"])
def test_what_a_qwen_leaves_out(model_type: str) -> None:
    """Is what transformers takes."""
    ours, theirs = read(model_type), CONFIG_MAPPING[model_type](**SIZES)
    linear = tuple(layer for layer, kind in enumerate(theirs.layer_types) if kind == "linear_attention")
    assert ours.recurrent == GatedDeltaNets(
        linear,
        theirs.linear_conv_kernel_dim,
        theirs.linear_num_key_heads,
        theirs.linear_num_value_heads,
        theirs.linear_key_head_dim,
        theirs.linear_value_head_dim,
    )
    assert (ours.num_kv_heads, ours.rotary_dims) == (theirs.num_key_value_heads, theirs.head_dim // 4)


def test_a_qwen_3_5_of_attention_alone() -> None:
    config = read("qwen3_5_text", full_attention_interval=1)
    assert config.recurrent is None and config.attention_gate


def test_what_an_lfm2_leaves_out() -> None:
    ours, theirs = read("lfm2"), CONFIG_MAPPING["lfm2"](**SIZES)
    assert set(theirs.layer_types) == {"full_attention"} and ours.recurrent is None
    convolved = read("lfm2", full_attn_idxs=[2, 4], conv_L_cache=4).recurrent
    assert convolved == ShortConvolutions((0, 1, 3), 4)


@pytest.mark.parametrize(
    "said",
    [
        {"block_auto_adjust_ff_dim": False},
        {},
        {"block_multiple_of": 32},
        {"block_ffn_dim_multiplier": 1.7, "block_multiple_of": 32},
        {"block_ff_dim": 200, "block_multiple_of": 8},
    ],
)
def test_the_mlp_of_an_lfm2_is_as_wide_as_transformers(said: dict[str, Any]) -> None:
    theirs = CONFIG_MAPPING["lfm2"](**{**SIZES, **said})
    for values in ({**SIZES, **said}, theirs.to_dict()):
        ours = read_config({"model_type": "lfm2", **values}, "config.json")
        assert ours.intermediate_size == Lfm2MLP(theirs).w1.out_features


def test_what_an_lfm2_with_experts_leaves_out() -> None:
    kinds = ["conv", "full_attention", "conv", "conv", "full_attention"]
    ours, theirs = read("lfm2_moe", layer_types=kinds), CONFIG_MAPPING["lfm2_moe"](**SIZES, layer_types=kinds)
    routing = Routing(theirs.num_experts_per_tok, theirs.norm_topk_prob, "sigmoid", theirs.routed_scaling_factor)
    sparse = tuple(range(theirs.num_dense_layers, 5))
    expected = Experts(theirs.num_experts, routing, theirs.moe_intermediate_size, None, sparse, corrected=True)
    assert ours.experts == expected
    assert (ours.num_kv_heads, ours.tie_embeddings) == (theirs.num_key_value_heads, theirs.tie_word_embeddings)
    assert read("lfm2_moe", layer_types=kinds, num_dense_layers=5).experts is None


def test_what_a_falcon_h1_leaves_out() -> None:
    ours, theirs = read("falcon_h1"), CONFIG_MAPPING["falcon_h1"](**SIZES)
    assert ours.recurrent == StateSpaces(
        tuple(range(5)),
        theirs.mamba_d_conv,
        theirs.mamba_n_groups,
        theirs.mamba_n_heads,
        theirs.mamba_d_state,
        theirs.mamba_d_head,
        normed=False,
        beside_attention=True,
    )
    assert (ours.num_kv_heads, ours.tie_embeddings) == (theirs.num_key_value_heads, theirs.tie_word_embeddings)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert read("falcon_h1", num_attention_heads=4, num_key_value_heads=None).num_kv_heads == 4
    as_wide = read("falcon_h1", mamba_d_ssm=None, mamba_n_heads=8).recurrent
    assert isinstance(as_wide, StateSpaces) and as_wide.inner == 128


def test_a_published_falcon_h1() -> None:
    """0.5B's, with keys that say nothing of what is computed."""
    config = read_config(
        {
            "model_type": "falcon_h1",
            "architectures": ["FalconH1ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 0.9375,
            "attn_layer_indices": None,
            "embedding_multiplier": 5.656854249492381,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "key_multiplier": 0.390625,
            "lm_head_multiplier": 0.0390625,
            "mamba_chunk_size": 128,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_ssm": 1536,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 24,
            "mamba_norm_before_gate": False,
            "mamba_proj_bias": False,
            "mamba_rms_norm": False,
            "mamba_use_mlp": True,
            "max_position_embeddings": 16384,
            "mlp_bias": False,
            "mlp_expansion_factor": 8,
            "mlp_multipliers": [0.8838834764831844, 0.5859375],
            "num_attention_heads": 8,
            "num_hidden_layers": 36,
            "num_key_value_heads": 2,
            "num_logits_to_keep": 1,
            "projectors_bias": False,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 100000000000.0,
            "ssm_in_multiplier": 1.25,
            "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
            "ssm_out_multiplier": 0.23570226039551587,
            "tie_word_embeddings": False,
            "vocab_size": 32784,
        },
        "config.json",
    )
    spaces = config.recurrent
    assert isinstance(spaces, StateSpaces) and (spaces.inner, spaces.normed, spaces.projected) == (1536, False, 3352)
    assert config.rope_theta == 1e11 and config.head_dim == 64
    assert config.norm_eps_of_states == pytest.approx(1e-5)
    assert all(config.is_recurrent(layer) and config.has_attention(layer) for layer in range(36))


def test_what_a_nemotron_h_leaves_out() -> None:
    sizes = {**SIZES, "num_hidden_layers": 6}
    ours, theirs = read("nemotron_h", **{**sizes, **PATTERN}), CONFIG_MAPPING["nemotron_h"](**sizes, **PATTERN)
    spaces = StateSpaces(
        (0, 2, 3),
        theirs.conv_kernel,
        theirs.n_groups,
        theirs.mamba_num_heads,
        theirs.ssm_state_size,
        theirs.mamba_head_dim,
    )
    routing = Routing(theirs.num_experts_per_tok, theirs.norm_topk_prob, "sigmoid", theirs.routed_scaling_factor)
    width, shared = theirs.moe_intermediate_size, theirs.moe_shared_expert_intermediate_size
    for config in (ours, read_config(theirs.to_dict(), "config.json")):
        assert config.recurrent == spaces
        assert (config.without_attention, config.without_mlp) == ((1, 5), (0, 2, 3, 4))
        assert config.experts is not None and config.experts.layers == (5,)
        assert (config.experts.intermediate_size, config.experts.shared_intermediate_size) == (width, shared)
        assert config.experts.routing == routing and config.experts.count == theirs.n_routed_experts
        assert (config.head_dim, config.num_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
        assert config.rms_norm_eps == theirs.layer_norm_epsilon and config.unrotated == tuple(range(6))
    assert read("nemotron_h", **{**sizes, "hybrid_override_pattern": "M-M*--"}).experts is None
    assert (
        read("nemotron_h", **{**sizes, **PATTERN, "num_attention_heads": 4, "num_key_value_heads": None}).num_kv_heads
        == 4
    )


def test_older_names_of_a_nemotron_h() -> None:
    said = {"attention_head_dim": 32, "mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_dt_limit": [0.1, 0.5]}
    config = read("nemotron_h", **{**SIZES, "num_hidden_layers": 6, **PATTERN, **said})
    spaces = config.recurrent
    assert isinstance(spaces, StateSpaces) and config.head_dim == 32
    assert (spaces.groups, spaces.tokens, spaces.step_limit) == (4, 3, (0.1, 0.5))


def test_a_published_nemotron_3_nano() -> None:
    """30B's, by what is read of it; its rotary base means nothing."""
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    config = read_config(
        {
            "model_type": "nemotron_h",
            "attention_bias": False,
            "expand": 2,
            "head_dim": 128,
            "hidden_size": 2688,
            "hybrid_override_pattern": pattern,
            "intermediate_size": 1856,
            "layer_norm_epsilon": 1e-05,
            "mamba_head_dim": 64,
            "mamba_hidden_act": "silu",
            "mamba_num_heads": 64,
            "mamba_proj_bias": False,
            "mamba_ssm_cache_dtype": "float32",
            "max_position_embeddings": 262144,
            "mlp_bias": False,
            "mlp_hidden_act": "relu2",
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "n_group": 1,
            "n_groups": 8,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 52,
            "num_key_value_heads": 2,
            "partial_rotary_factor": 1.0,
            "residual_in_fp32": False,
            "rope_theta": 10000,
            "routed_scaling_factor": 2.5,
            "sliding_window": None,
            "ssm_state_size": 128,
            "tie_word_embeddings": False,
            "time_step_limit": [0.0, {"__float__": "Infinity"}],
            "topk_group": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "vocab_size": 131072,
        },
        "config.json",
    )
    assert config.experts is not None and len(config.experts.layers) == 23
    assert config.recurrent is not None and len(config.recurrent.layers) == 23
    assert [layer for layer in range(52) if config.has_attention(layer)] == [i for i in range(52) if pattern[i] == "*"]
    # 3.2 billion for a token, of which the output head has some
    assert sum(config.layer_parameters) == pytest.approx(3.2e9 - 131072 * 2688, rel=0.02)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_next", "lfm2", "lfm2_moe"])
@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["full_attention"] * 4, "layer_types must list the types of 5 layers"),
        ("full_attention", "layer_types must list the types of 5 layers"),
        (["full_attention"] * 4 + ["mamba"], "layer_types has 'mamba', which is not supported"),
    ],
)
def test_types_of_layers_that_cannot_be(model_type: str, kinds: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: {message}"):
        read(model_type, layer_types=kinds)


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("qwen3_5_text", {"layer_types": ["conv"] * 5}, "layer_types has 'conv'"),
        ("lfm2", {"layer_types": ["linear_attention"] * 5}, "layer_types has 'linear_attention'"),
        ("qwen3_5_text", {"linear_num_value_heads": 24}, "is 24, which 16 key heads do not share evenly"),
        ("qwen3_5_text", {"linear_key_head_dim": 0}, "linear_key_head_dim is 0, not a positive number"),
        ("qwen3_5_text", {"attention_bias": True}, r"biases of gated attention \(attention_bias\) are not supported"),
        ("qwen3_5_moe_text", {"num_experts_per_tok": 500}, "num_experts_per_tok is 500, and there are 256 experts"),
        ("lfm2", {"conv_bias": True}, r"biases of convolutions \(conv_bias\) are not supported"),
        ("lfm2", {"full_attn_idxs": [5]}, r"full_attn_idxs is \[5\], not a list of layers below 5"),
        ("lfm2", {"full_attn_idxs": 2}, "full_attn_idxs is 2, not a list of layers below 5"),
        ("lfm2", {"block_multiple_of": 0}, "block_multiple_of is 0, not a positive number"),
        ("lfm2_moe", {}, "no layer_types"),
        ("lfm2_moe", {"layer_types": ["conv"] * 5, "num_experts": 3}, "num_experts_per_tok is 4, and there are 3"),
        ("lfm2", {"num_experts": 4}, r"mixture of experts \(num_experts=4\) is not supported"),
        ("qwen3_5", {}, "text_config is None, not an object"),
    ],
)
def test_what_a_config_cannot_say(model_type: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        read(model_type, **values)


def write_one_that_sees(directory: Path, kind: str) -> Any:
    """As it is published: tensors of a vision tower beside the text's, and of a prediction module that transformers
    leaves out.
    """
    model_type, own = ARCHITECTURES[kind]
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 48}
    config = CONFIG_MAPPING[model_type.removesuffix("_text")](
        text_config={**SHAPE, **own, "model_type": model_type},
        vision_config={**vision, "num_position_embeddings": 16, "patch_size": 4, "deepstack_visual_indexes": []},
        tie_word_embeddings=bool(own.get("tie_word_embeddings", False)),
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    model.save_pretrained(directory)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "mtp.fc.weight": torch.zeros(48, 96)}, directory / "model.safetensors")
    return model


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_checkpoint_of_a_model_that_sees(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = write_one_that_sees(tmp_path, kind)
    stored = set(load_file(tmp_path / "model.safetensors"))
    assert any(name.startswith("model.visual.") for name in stored)
    capsys.readouterr()
    checkpoint = open_checkpoint(str(tmp_path))
    assert capsys.readouterr().err == ""
    text = {name for name in checkpoint.names() if name != "lm_head.weight"}
    assert all(name.startswith("model.language_model.") for name in text)
    with torch.inference_mode():
        expected_NV = reference(input_ids=torch.tensor([TOKENS])).logits[0]
    executor = TorchExecutor(load_decoder(checkpoint, torch.device("cpu"), torch.float32), Ops())
    ours_NV = Session(executor).score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV
    assert (ours_NV - expected_NV).abs().max() < 1e-4 * expected_NV.abs().max()
    assert expected_NV.std() > 0.1
