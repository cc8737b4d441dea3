"""What an EAGLE-3 head is before it has learned anything: sizes and weights taken from the target.

Its layer begins as the target's last one. Q, K and V read the embedding too: there they begin as the target's first
layer, which reads nothing else. ``fc`` begins by passing the highest tapped state on.

Legend: V vocabulary, M model dim.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.draft_heads.head_spec import read_layer
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.target_weights import read_weight

NOISE = 0.01
"""Standard deviation of what ``fc`` begins with besides."""
_ROPE_FIELDS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class HeadStart:
    """``body``: the config.json of its layer, which reads as ``config``; ``taps``: the target layers that it reads.

    ``weights``: the trained ones, by role, matrices of one input one below the other. ``embedding_VM`` and ``head_VM``
    are the target's.
    """

    config: ModelConfig
    body: Mapping[str, Any]
    taps: tuple[int, ...]
    weights: Mapping[str, torch.Tensor]
    embedding_VM: torch.Tensor
    head_VM: torch.Tensor


def head_config(target: ModelConfig, values: Mapping[str, Any], shape: DraftShape) -> dict[str, Any]:
    """The config.json of a head's layer of this shape. ``values``: the target's config.json.

    Raises UserError for a target whose layers are none that a head could begin as.
    """
    config = shape.config(target)
    plainly_rotated = target.windowed_rope is None and target.rotary_dims is None
    rope = {key: values[key] for key in _ROPE_FIELDS if values.get(key)} if plainly_rotated else {}
    body = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps_of_states,
        "max_position_embeddings": values.get("max_position_embeddings", config.max_context),
        "rope_theta": config.rope_theta,
        **rope,
        "vocab_size": config.vocab_size,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
    }
    return {key: value for key, value in body.items() if value is not None}


def head_start(
    source: TensorSource, values: Mapping[str, Any], shape: DraftShape, taps: tuple[int, ...], seed: int
) -> HeadStart:
    """A head for ``source``, whose config.json is ``values``. ``shape``: what is kept of the target's last layer."""
    target, theirs = source.config, weights_of(source.config)
    body = head_config(target, values, shape)
    config = read_layer(Fields(body, "the head's config.json"), ())

    read = functools.partial(read_weight, source, theirs)
    roles = ("q", "k", "v", "o", "gate", "up", "down")
    if missing := [role for role in roles if role not in theirs]:
        raise UserError(
            f"model.target: {target.architecture} has no {missing[0]}, with which a head's layer would begin"
        )
    last, first = ({role: read(role, layer) for role in roles} for layer in (target.num_layers - 1, 0))
    last, first = shape.cut(last, target), shape.cut(first, target)
    for of, number in ((last, target.num_layers - 1), (first, 0)):
        for role in ("input_norm", "post_norm"):
            # what stands before sub-layers without such norms leaves states as they are, at first
            of[role] = read(role, number) if role in theirs else torch.ones(target.hidden_size)
    # what the target scales, the head's layer does not
    for role in ("o", "down"):
        last[role] = last[role] * target.state_scale
    if target.attention_scale is not None:
        for layer in (first, last):
            layer["q"] = layer["q"] * (target.attention_scale * target.head_dim**0.5)
    M = config.hidden_size
    fc = NOISE * torch.randn(M, len(taps) * M, generator=torch.Generator().manual_seed(seed))
    fc[:, -M:] += torch.eye(M)
    return HeadStart(
        config,
        body,
        taps,
        {
            "fc": fc,
            "qkv": torch.cat([torch.cat((first[role], last[role]), dim=1) for role in "qkv"]),
            "output": last["o"],
            "gate_up": torch.cat((last["gate"], last["up"])),
            "down": last["down"],
            "embedding_norm": first["input_norm"],
            "feature_norm": last["input_norm"],
            "post_norm": last["post_norm"],
            "final_norm": read("final_norm") * target.logit_scale,
        },
        read("embedding"),
        read("head") if "head" in theirs else read("embedding"),
    )
