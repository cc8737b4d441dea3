"""config.json → ModelConfig: transformers' meaning of every spelling, and one line for what we cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.config import Experts, ModelConfig, RopeScaling
from spec_sdk.model.config_fields import read_json_object
from tests.support.tiny_checkpoints import ARCHITECTURES, LLAMA3_ROPE, SHAPE

MINIMAL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}


def read(**changes: Any) -> ModelConfig:
    values = {key: value for key, value in {**MINIMAL, **changes}.items() if value is not ...}
    return read_config(values, "config.json")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_agrees_with_transformers(name: str) -> None:
    model_type, differences = ARCHITECTURES[name]
    theirs = CONFIG_MAPPING[model_type](**{**SHAPE, **differences})
    ours = read_config(theirs.to_dict(), "config.json")
    assert ours.architecture == model_type
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    window = getattr(theirs, "sliding_window", None)
    assert ours.max_context == min(theirs.max_position_embeddings, window or theirs.max_position_embeddings)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_missing_keys_mean_what_they_mean_to_transformers(model_type: str) -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 256}
    theirs = CONFIG_MAPPING[model_type](**{key: v for key, v in MINIMAL.items() if key != "model_type"} | sizes)
    ours = read(model_type=model_type, **sizes)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 8)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.max_context == min(8192, getattr(theirs, "sliding_window", None) or 8192)
    assert ours.rope_scaling is None
    if model_type in ("mixtral", "qwen2_moe", "qwen3_moe"):
        count = theirs.num_local_experts if model_type == "mixtral" else theirs.num_experts
        width = theirs.intermediate_size if model_type == "mixtral" else theirs.moe_intermediate_size
        shared = getattr(theirs, "shared_expert_intermediate_size", None)
        normalized = getattr(theirs, "norm_topk_prob", True)
        assert ours.experts == Experts(count, theirs.num_experts_per_tok, width, normalized, shared, (0, 1))
    else:
        assert ours.experts is None


def test_which_layers_have_experts() -> None:
    qwen = {"model_type": "qwen3_moe", "num_key_value_heads": 2, "num_hidden_layers": 6}

    def layers(**changes: Any) -> tuple[int, ...] | None:
        experts = read(**qwen, **changes).experts
        return None if experts is None else experts.layers

    assert layers() == (0, 1, 2, 3, 4, 5)
    assert layers(decoder_sparse_step=2) == (1, 3, 5)
    assert layers(decoder_sparse_step=2, mlp_only_layers=[3, 4]) == (1, 5)
    assert layers(num_experts=0) is layers(decoder_sparse_step=7) is None
    config = read(**qwen, decoder_sparse_step=2).of_layers([0, 1, 4, 5])
    assert config.experts is not None and (config.experts.layers, config.num_layers) == ((1, 3), 4)


def test_windows_of_models_with_experts() -> None:
    heads = {"num_key_value_heads": 2, "sliding_window": 100}
    assert read(model_type="mixtral", **heads).max_context == 100
    assert read(model_type="mixtral", **{**heads, "sliding_window": None}).max_context == 8192
    for name in ("qwen2_moe", "qwen3_moe"):
        assert read(model_type=name, **heads).max_context == 8192
        assert read(model_type=name, **heads, use_sliding_window=True).max_context == 100
    kinds = {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}
    assert read(model_type="qwen2_moe", **heads, **kinds).max_context == 8192
    assert read(model_type="qwen2_moe", **heads, use_sliding_window=True, max_window_layers=0).max_context == 8192


def test_both_spellings_of_rope_scaling() -> None:
    llama3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 32, context=8192)
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3_ROPE)
    new = read(rope_parameters={"rope_theta": 500000.0, **LLAMA3_ROPE})
    assert old == new and (new.rope_theta, new.rope_scaling) == (500000.0, llama3)
    linear = RopeScaling("linear", 2.0, original_max_position=8192, context=8192)
    assert read(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == linear
    assert read(rope_scaling={"rope_type": "default"}).rope_scaling is None
    assert read(rope_scaling=None, rope_theta=7).rope_theta == 7.0


def test_sliding_windows_bound_the_context() -> None:
    assert read(model_type="mistral", num_key_value_heads=2, sliding_window=100).max_context == 100
    assert read(model_type="mistral", num_key_value_heads=2, sliding_window=None).max_context == 8192
    qwen = {"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 100}
    assert read(**qwen).max_context == 8192
    assert read(**qwen, use_sliding_window=True, max_window_layers=2).max_context == 8192
    assert read(**qwen, use_sliding_window=True, max_window_layers=1).max_context == 100
    mixed = ["full_attention", "sliding_attention"]
    assert read(**qwen, use_sliding_window=True, layer_types=mixed).max_context == 100
    assert read(**qwen, use_sliding_window=False, layer_types=["full_attention"] * 2).max_context == 8192


def test_biases_by_architecture() -> None:
    biased = read(attention_bias=True, mlp_bias=True)
    assert biased.qkv_bias and biased.o_bias and biased.mlp_bias
    qwen2 = read(model_type="qwen2", num_key_value_heads=2)
    assert qwen2.qkv_bias and not qwen2.o_bias and not qwen2.qk_norm
    qwen3 = read(model_type="qwen3", num_key_value_heads=2)
    assert qwen3.qk_norm and not qwen3.qkv_bias


def test_end_tokens_may_be_several() -> None:
    assert read(eos_token_id=[5, 7]).eos_token_ids == (5, 7)
    assert read(eos_token_id=5, bos_token_id=1).bos_token_id == 1
    assert read(eos_token_id=-1, bos_token_id=100).eos_token_ids == ()
    assert read(bos_token_id=100).bos_token_id is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2_vl"}, "unsupported architecture 'qwen2_vl', did you mean 'qwen2"),
        ({"model_type": "deepseek_v3"}, "unsupported architecture 'deepseek_v3'"),
        (
            {"model_type": "bert"},
            "unsupported architecture 'bert'; there are: llama, mistral, mixtral, qwen2, qwen2_moe",
        ),
        ({"model_type": ...}, "no model_type"),
        ({"hidden_size": ...}, "no hidden_size"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a number"),
        ({"hidden_size": 64.5}, "hidden_size is 64.5, not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide into 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"num_local_experts": 8}, "mixture of experts (num_local_experts=8) is not supported"),
        (
            {"model_type": "qwen3_moe", "n_routed_experts": 8},
            "mixture of experts (n_routed_experts=8) is not supported",
        ),
        ({"model_type": "qwen3_moe", "num_experts": 4}, "num_experts_per_tok is 8, and there are 4 experts"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [2]}, "mlp_only_layers is [2], not a list of layers below 2"),
        ({"attn_logit_softcapping": 50.0}, "softcapping"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"rope_scaling": {"type": "yarm", "factor": 4.0}}, "unsupported rope type 'yarm', did you mean 'yarn'"),
        ({"rope_scaling": {"type": "proportional"}}, "there are: default, dynamic, linear, llama3, longrope, yarn"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0.5}}, "beta_fast 0.5 must not be less than"),
        ({"rope_scaling": {"type": "dynamic"}}, "no factor"),
        ({"rope_scaling": {"type": "yarn"}, "rope_theta": 1.0}, "yarn takes a rope_theta above 1"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor is a list of 1, not a list of 8"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7 + ["1"]}}, "short_factor[7] is '1', not a number"),
        ({"rope_scaling": {"type": "longrope", "long_mscale": 1.2}}, "long_mscale is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "no low_freq_factor"),
        ({"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}, "must exceed low_freq_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', not an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        ({"model_type": "qwen3", "num_key_value_heads": 2, "layer_types": ["linear_attention"]}, "linear_attention"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(**changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith("config.json") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[1]", "not an object"), ("\xff", "JSON")])
def test_files_that_are_no_json_object(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        read_json_object(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_json_object(tmp_path / "other.json")
