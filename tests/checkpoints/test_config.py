"""config.json → ModelConfig: transformers' meaning of every spelling, and one line for what we cannot run."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import families, read_config
from spec_sdk.model.config import Experts, ModelConfig, Rope, RopeScaling
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.ops.feed_forward import Routing
from tests.support.tiny_checkpoints import ARCHITECTURES, LLAMA3_ROPE, SHAPE

KNOWN = sorted(name for family in families() for name in family.model_types)
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
    # it writes to what it is given
    theirs = CONFIG_MAPPING[model_type](**copy.deepcopy({**SHAPE, **differences}))
    ours = read_config(theirs.to_dict(), "config.json")
    assert ours.architecture == model_type
    if model_type == "gemma4_text":
        theirs.allow_global_per_layer_attribute_access = True
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    if ours.latent is None:
        assert (ours.head_dim, ours.num_kv_heads) == (head_dim, theirs.num_key_value_heads)
    else:
        assert (ours.latent.qk_rope_head_dim, ours.latent.v_head_dim) == (theirs.qk_rope_head_dim, theirs.v_head_dim)
        assert ours.head_dim == theirs.kv_lora_rank + theirs.qk_rope_head_dim
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.max_context == theirs.max_position_embeddings
    assert_layers_agree(ours, theirs)


FALCON_H1 = {
    "model_type": "falcon_h1",
    "num_key_value_heads": 2,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
}
NEMOTRON_H = {"model_type": "nemotron_h", "num_key_value_heads": 2, "hybrid_override_pattern": "M*"}
GRANITE_H = {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "mamba_n_heads": 4}
DENSE = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"]
DENSE += ["ernie4_5", "glm", "glm4", "granite", "phi3", "seed_oss", "smollm3", "olmo2", "olmo3", "exaone4"]
DENSE += ["qwen3_5_text", "lfm2"]
MOE = ["granitemoe", "mixtral", "qwen2_moe", "qwen3_moe", "ernie4_5_moe", "glm4_moe", "olmoe"]
MOE += ["qwen3_5_moe_text", "qwen3_next"]


def assert_layers_agree(ours: ModelConfig, theirs: Any) -> None:
    """Window and base frequency, layer by layer."""
    always = "full_attention" if getattr(theirs, "sliding_window", None) is None else "sliding_attention"
    kinds = getattr(theirs, "layer_types", None) or [always] * theirs.num_hidden_layers
    assert len(kinds) == ours.num_layers
    for layer, kind in enumerate(kinds):
        window = theirs.sliding_window if kind == "sliding_attention" else None
        found = ours.layer_kind(layer)
        assert found.attention.window == (window if window and window < ours.max_context else None)
        if layer in ours.unrotated:
            assert found.rope.dims == 0
            continue
        assert found.rope.theta == theirs.rope_parameters.get(kind, theirs.rope_parameters)["rope_theta"]


@pytest.mark.parametrize("model_type", [*DENSE, *MOE])
def test_missing_keys_mean_what_they_mean_to_transformers(model_type: str) -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 256}
    theirs = CONFIG_MAPPING[model_type](**{key: v for key, v in MINIMAL.items() if key != "model_type"} | sizes)
    ours = read(model_type=model_type, **sizes)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 8)
    assert ours.rms_norm_eps == (theirs.norm_eps if model_type == "lfm2" else theirs.rms_norm_eps)
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.max_context == 8192
    assert ours.rope_scaling is None
    assert_layers_agree(ours, theirs)
    if model_type in ("gemma2", "gemma3_text"):
        assert ours.layer_kind(0).attention.softcap == theirs.attn_logit_softcapping
        assert ours.layer_kind(0).attention.scale_for(ours.head_dim) == theirs.query_pre_attn_scalar**-0.5
        assert ours.logit_softcap == theirs.final_logit_softcapping
    partial = theirs.rope_parameters.get("partial_rotary_factor", 1.0)
    assert (ours.rotary_dims or ours.head_dim) == ours.head_dim * partial
    if model_type in MOE:
        local = model_type in ("granitemoe", "mixtral", "glm4_moe")
        count = theirs.num_local_experts if local else theirs.num_experts
        width = getattr(theirs, "moe_intermediate_size", None) or theirs.intermediate_size
        shared = getattr(theirs, "shared_expert_intermediate_size", None)
        routing = Routing(theirs.num_experts_per_tok, getattr(theirs, "norm_topk_prob", True))
        if model_type == "glm4_moe":
            routing = replace(routing, scored_by="sigmoid")
        # the two with a correction begin with an MLP
        corrected = {"ernie4_5_moe": 2 * width, "glm4_moe": width}
        expected = Experts(count, routing, width, shared, (0, 1))
        if model_type in corrected:
            routing = replace(routing, least_sum=getattr(theirs, "moe_norm_min", routing.least_sum))
            expected = Experts(count, routing, width, corrected[model_type], (1,), corrected=True, shared_gated=False)
        assert ours.experts == expected
    else:
        assert ours.experts is None


def test_a_granite_s_norms_are_of_states_that_are_not_scaled() -> None:
    """Those of the decoder are larger, by as much as residuals are scaled less."""
    config = read(model_type="granite", residual_multiplier=0.25, rms_norm_eps=1e-5)
    assert config.rms_norm_eps == pytest.approx(1.6e-4) and config.norm_eps_of_states == pytest.approx(1e-5)


def test_phi_s_first_name_of_longrope() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    for name in ("yarn", "su", "longrope"):
        config = read(model_type="phi3", rope_scaling={"type": name, **factors}, original_max_position_embeddings=4096)
        assert config.rope_scaling is not None and config.rope_scaling.kind == "longrope"


def test_layers_of_a_smollm3_slide_as_their_types_say() -> None:
    kinds = ["full_attention", "sliding_attention"]
    listed = read(model_type="smollm3", sliding_window=64, layer_types=kinds)
    assert listed.windows == (None, 64) and read(model_type="smollm3", sliding_window=64).windows == ()


def test_a_part_that_is_a_quotient_is_whole_pairs() -> None:
    config = read(model_type="phi3", head_dim=88, partial_rotary_factor=30 / 88)
    assert config.rotary_dims == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers must say 0 or 1 of each of 2 layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "no_rope_layers must say 0 or 1"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 rotates 24 of a head's 16"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.2}, "partial_rotary_factor 0.2 rotates 3 of a head's 16"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope type 'linear' is none of Phi's, which is 'longrope'",
        ),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba"]}, "must list the types of 2 layers"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "rwkv"]}, "'rwkv', which is not supported"),
        ({**GRANITE_H, "mamba_n_heads": 5}, "5 heads of"),
        ({**GRANITE_H, "mamba_proj_bias": True}, "mamba_proj_bias"),
        ({**GRANITE_H, "time_step_limit": [0.0]}, "not two numbers"),
        ({**GRANITE_H, "time_step_limit": 0.5}, "not two numbers"),
        ({**FALCON_H1, "mamba_n_heads": 5}, "5 heads of"),
        ({**FALCON_H1, "mamba_rms_norm": True}, "a norm before the gate (mamba_norm_before_gate with mamba_rms_norm)"),
        ({**FALCON_H1, "mlp_bias": True}, "biases (mlp_bias) are not supported"),
        ({**FALCON_H1, "projectors_bias": True}, "biases (projectors_bias) are not supported"),
        ({**FALCON_H1, "attention_bias": True}, "biases (attention_bias) are not supported"),
        ({**FALCON_H1, "mamba_proj_bias": True}, "(mamba_proj_bias) are not supported"),
        ({**FALCON_H1, "mamba_use_mlp": False}, "without an MLP (attn_layer_indices, mamba_use_mlp)"),
        ({**FALCON_H1, "attn_layer_indices": [1]}, "layers without attention or without an MLP (attn_layer_indices"),
        ({**FALCON_H1, "ssm_multipliers": [1.0] * 4}, "ssm_multipliers must list 5 numbers"),
        ({**FALCON_H1, "mlp_multipliers": 0.5}, "mlp_multipliers must list 2 numbers"),
        ({**FALCON_H1, "mlp_multipliers": [0.5, 0.0]}, "mlp_multipliers, number 1 is 0.0, not a positive number"),
        ({**FALCON_H1, "key_multiplier": -1.0}, "key_multiplier is -1.0, not a positive number"),
        ({**NEMOTRON_H, "hybrid_override_pattern": None}, "neither hybrid_override_pattern nor layers_block_type says"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern has 'X', which is not supported"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "M-M"}, "num_hidden_layers is 2, and 3 layers are listed"),
        (
            {**NEMOTRON_H, "hybrid_override_pattern": None, "layers_block_type": ["mamba", "rwkv"]},
            "layers_block_type has 'rwkv', which is not supported",
        ),
        ({**NEMOTRON_H, "mlp_hidden_act": "silu"}, "unsupported mlp_hidden_act 'silu', only 'relu2' is supported"),
        ({**NEMOTRON_H, "mamba_hidden_act": "relu2"}, "unsupported mamba_hidden_act 'relu2', only 'silu'"),
        ({**NEMOTRON_H, "use_bias": True}, "biases of state spaces' projections (use_bias) are not supported"),
        ({**NEMOTRON_H, "mamba_proj_bias": True}, "(mamba_proj_bias) are not supported"),
        ({**NEMOTRON_H, "mlp_bias": True}, "biases of MLPs (mlp_bias) are not supported"),
        ({**NEMOTRON_H, "attention_bias": True}, "biases of attention (attention_bias) are not supported"),
        ({**NEMOTRON_H, "residual_in_fp32": True}, "residuals in float32 (residual_in_fp32) are not supported"),
        ({**NEMOTRON_H, "moe_latent_size": 8}, "experts of a latent size (moe_latent_size) are not supported"),
        ({**NEMOTRON_H, "sliding_window": 8}, "sliding windows (sliding_window) are not supported"),
        ({**NEMOTRON_H, "block_configs": [{}]}, "layers of different sizes (block_configs) are not supported"),
        ({**NEMOTRON_H, "mamba_num_heads": 4, "n_groups": 3}, "in 3 groups do not make up"),
        ({"model_type": "glm4_moe", "n_group": 5}, "128 experts are not 5 groups (n_group) of at least two"),
        ({"model_type": "glm4_moe", "n_group": 128}, "128 experts are not 128 groups (n_group) of at least two"),
        ({"model_type": "glm4_moe", "topk_group": 2}, "topk_group is 2, and there are 1 groups"),
        ({"model_type": "glm4_moe", "n_group": 32}, "num_experts_per_tok is 8, and a token may choose among 4 experts"),
        (
            {"model_type": "glm4_moe", "first_k_dense_replace": -1},
            "first_k_dense_replace is -1, not a whole",
        ),
        ({"model_type": "dots1"}, "no n_routed_experts"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clipped Q, K and V (clip_qkv) are not supported"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LXG"}, "sliding_window_pattern is 'LXG', not letters L"),
        ({"model_type": "ernie4_5_moe", "moe_k": 65}, "moe_k is 65, and there are 64 experts"),
        ({"model_type": "ernie4_5_moe", "use_bias": True}, "biases (use_bias) are not supported in this family"),
    ],
)
def test_refused_of_families(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read(**changes)


def test_which_layers_have_experts() -> None:
    qwen = {"model_type": "qwen3_moe", "num_key_value_heads": 2, "num_hidden_layers": 6}

    def layers(**changes: Any) -> tuple[int, ...] | None:
        experts = read(**qwen, **changes).experts
        return None if experts is None else experts.layers

    assert layers() == (0, 1, 2, 3, 4, 5)
    assert layers(decoder_sparse_step=2) == (1, 3, 5)
    assert layers(decoder_sparse_step=2, mlp_only_layers=[3, 4]) == (1, 5)
    assert layers(num_experts=0) is layers(decoder_sparse_step=7) is None
    dots = read(model_type="dots1", n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=0).experts
    assert dots is not None and dots.shared_intermediate_size is None
    ernie = read(model_type="ernie4_5_moe", moe_norm_min=0.5).experts
    assert ernie is not None and ernie.routing.least_sum == 0.5
    exaone = {"model_type": "exaone4", "num_key_value_heads": 2, "sliding_window": None, "sliding_window_pattern": 0}
    assert read(**exaone).unrotated == read(**exaone).windows == ()
    config = read(**qwen, decoder_sparse_step=2).of_layers([0, 1, 4, 5])
    assert config.experts is not None and (config.experts.layers, config.num_layers) == ((1, 3), 4)


def test_windows_of_models_with_experts() -> None:
    """The even layers, counted from 0, of Qwen 2's; all of the others'."""
    heads = {"num_key_value_heads": 2, "sliding_window": 100, "num_hidden_layers": 4}
    assert read(model_type="mixtral", **heads).windows == (100,) * 4
    assert read(model_type="mixtral", **{**heads, "sliding_window": None}).windows == ()
    on = {**heads, "use_sliding_window": True}
    assert read(model_type="qwen2_moe", **heads).windows == read(model_type="qwen3_moe", **heads).windows == ()
    assert read(model_type="qwen3_moe", **on).windows == (100,) * 4
    assert read(model_type="qwen2_moe", **on).windows == (100, None, 100, None)
    assert read(model_type="qwen2_moe", **on, max_window_layers=2).windows == (100, None, None, None)
    assert read(model_type="qwen2_moe", **on, max_window_layers=0).windows == ()
    kinds = ["full_attention", "sliding_attention"] * 2
    assert read(model_type="qwen2_moe", **on, layer_types=kinds).windows == (None, 100, None, 100)


def test_both_spellings_of_rope_scaling() -> None:
    llama3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 32, context=8192)
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3_ROPE)
    new = read(rope_parameters={"rope_theta": 500000.0, **LLAMA3_ROPE})
    assert old == new and (new.rope_theta, new.rope_scaling) == (500000.0, llama3)
    linear = RopeScaling("linear", 2.0, original_max_position=8192, context=8192)
    assert read(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == linear
    assert read(rope_scaling={"rope_type": "default"}).rope_scaling is None
    assert read(rope_scaling=None, rope_theta=7).rope_theta == 7.0


def test_of_both_spellings_rope_scaling_counts() -> None:
    plain, linear = {"rope_theta": 7.0, "rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}
    both = read(rope_parameters=plain, rope_scaling=linear)
    assert both == read(rope_scaling=linear) and both.rope_theta == 10000.0
    assert read(rope_parameters={"rope_theta": 7.0, **linear}, rope_scaling={"rope_type": "default"}) == read()
    by_kind = {"full_attention": {"rope_theta": 1e5, "rope_type": "default"}, "sliding_attention": {"rope_theta": 2e4}}
    stretched = {**by_kind, "full_attention": {"rope_theta": 1e5, **linear}}
    assert read(**GEMMA3, rope_parameters=by_kind, rope_scaling=linear) == read(**GEMMA3, rope_parameters=stretched)


def windows(**changes: Any) -> list[int | None]:
    config = read(**changes)
    assert config.max_context == 8192
    return [config.layer_kind(layer).attention.window for layer in range(config.num_layers)]


def test_sliding_windows_are_those_of_layers() -> None:
    mistral = {"model_type": "mistral", "num_key_value_heads": 2}
    assert windows(**mistral, sliding_window=100) == [100, 100]
    assert windows(**mistral, sliding_window=None) == [None, None]
    assert windows(**mistral, sliding_window=8192) == [None, None], "it hides nothing"
    ministral = {**mistral, "sliding_window": 100, "layer_types": ["full_attention", "sliding_attention"]}
    assert windows(**ministral) == [None, 100]
    qwen = {"model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 100}
    assert windows(**qwen) == [None, None]
    assert windows(**qwen, use_sliding_window=True, max_window_layers=2) == [None, None]
    assert windows(**qwen, use_sliding_window=True, max_window_layers=1) == [None, 100]
    mixed = ["sliding_attention", "full_attention"]
    assert windows(**qwen, use_sliding_window=True, layer_types=mixed) == [100, None]
    assert windows(**qwen, use_sliding_window=False, layer_types=["full_attention"] * 2) == [None, None]


def test_a_model_of_some_layers_keeps_their_windows() -> None:
    config = read(model_type="gemma2", sliding_window=100, num_hidden_layers=4)
    cut = config.of_layers([1, 2])
    assert [cut.layer_kind(i) for i in range(2)] == [config.layer_kind(i) for i in (1, 2)]
    assert cut.num_layers == 2 and config.layer_kind(1) != config.layer_kind(2)


GEMMA3: dict[str, Any] = {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 100}


def test_rotary_positions_of_gemma3_in_both_spellings() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    old = read(**GEMMA3, rope_theta=1e6, rope_local_base_freq=2e4, rope_scaling=linear)
    by_kind = {"full_attention": {"rope_theta": 1e6, **linear}, "sliding_attention": {"rope_theta": 2e4}}
    new = read(**GEMMA3, rope_parameters=by_kind)
    assert old == new
    ropes = [new.layer_kind(layer).rope for layer in (0, 5)]
    assert ropes == [Rope(2e4), Rope(1e6, RopeScaling("linear", 8.0, original_max_position=8192, context=8192))]
    # a window that hides nothing still has its own rotary positions
    wide = read(**{**GEMMA3, "sliding_window": 8192}, rope_parameters=by_kind)
    assert [wide.layer_kind(0).rope, wide.layer_kind(0).attention.window] == [Rope(2e4), None]


def test_the_text_of_a_multimodal_gemma3() -> None:
    text = {"hidden_size": 64, "num_hidden_layers": 6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = read_config({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]}, "config.json")
    assert (config.architecture, config.prefix) == ("gemma3_text", "language_model.")
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert config.eos_token_ids == (1, 106) and config.max_context == 131072
    scaling = RopeScaling("linear", 8.0, original_max_position=131072, context=131072)
    assert config.rope_scaling == scaling and config.layer_kind(0).rope == Rope(1e4)


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
        ({"model_type": "longcat_flash"}, "unsupported architecture 'longcat_flash'"),
        ({"model_type": "bert"}, f"unsupported architecture 'bert'; there are: {', '.join(KNOWN)}"),
        ({"model_type": "gemma2", "hidden_activation": "silu"}, "unsupported activation 'silu'"),
        ({"model_type": "gemma", "hidden_act": "relu"}, "unsupported activation 'relu'"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GEMMA3, "attn_logit_softcapping": 50.0}, "softcapping"),
        ({**GEMMA3, "rope_parameters": {"rope_theta": 1e4}}, "full_attention and sliding_attention"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types must list the types of 6 layers"),
        ({"model_type": ...}, "no model_type"),
        ({"model_type": ..., "speculators_model_type": "eagle3"}, "is of a draft head, not of a model: pipeline=eagle"),
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
        ({"model_type": "qwen3_moe", "mlp_only_layers": [True]}, "mlp_only_layers is [True], not a list of layers"),
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


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ("[1]", "not an object"), ("\xff", "no UTF-8 text")]
)
def test_files_that_are_no_json_object(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        read_json_object(path)
    with pytest.raises(UserError, match="does not exist"):
        read_json_object(tmp_path / "other.json")
