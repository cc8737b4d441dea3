"""gpt-oss: what its config.json may leave out, what is refused, and prediction of its attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.predictable import check_predictable

SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 8, "vocab_size": 96}


def read(**values: Any) -> ModelConfig:
    return read_config({"model_type": "gpt_oss", "max_position_embeddings": 131072, **SIZES, **values}, "config.json")


def test_what_a_config_leaves_out() -> None:
    """Is what transformers takes."""
    ours, theirs = read(), GptOssConfig(**SIZES)
    assert ours.experts is not None and ours.rope_scaling is not None
    assert (ours.experts.count, ours.experts.per_token) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert (ours.rope_scaling.factor, ours.rope_scaling.truncate) == (32.0, False)
    assert ours.rope_scaling.attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    assert ours.windows == (128, None, 128, None) and ours.rms_norm_eps == theirs.rms_norm_eps
    slides = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert [window is not None for window in ours.windows] == slides
    assert ours.qkv_bias and ours.o_bias and ours.attention_sinks and ours.activation == "clamped_swiglu"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not supported, only 7.0"),
        ({"swiglu_alpha": 2.0}, "swiglu_alpha 2.0 is not supported, only 1.702"),
        ({"num_local_experts": 0}, "a gpt-oss without experts is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types must list the types of 4 layers"),
    ],
)
def test_what_is_not_computed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(**values)


def test_attention_is_not_predicted() -> None:
    """Not even of layers that see all."""
    with pytest.raises(UserError, match="layer 1 of this gpt_oss model has attention sinks, .*; use predictor=none"):
        check_predictable(read(), 4, [1], "static")
