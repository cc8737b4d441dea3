"""Falcon H1 (Zuo et al. 2025, arXiv:2507.22448): every layer has attention and one of Mamba-2's state spaces side by
side, both of one input, then an MLP; and a dozen multipliers, which GGUF files have in their weights.

None of them is put into a matrix, which may be in few bits. With the MLP's two multipliers, g of gates and d of what it
gives, the decoder has h · g / d in the place of hidden states h (``ModelConfig.state_scale``), and the norm before the
MLP has the gain times g: gates are right then, and what it gives is too large by g / d, as the states are. So attention
must give that much more, too: by values, whose input is the norm's with the gain times a. What else goes on from that
norm is put right by the scale of scores, and inside of the state space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig, SpaceScales, StateSpaces
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.recurrent.space_settings import gguf_state_spaces, read_state_spaces
from spec_sdk.model.recurrent.weights import state_spaces
from spec_sdk.model.weight_table import Weight

_GGUF = "falcon-h1"
_BIASES = ("attention_bias", "mlp_bias", "projectors_bias")
_NAMES = {".mlp.": ".feed_forward.", "model.norm.": "model.final_layernorm."}


def _read_config(fields: Fields) -> ModelConfig:
    if biased := next((key for key in _BIASES if fields.flag(key, False)), None):
        raise UserError(f"{fields.where}: biases ({biased}) are not supported beside state spaces")
    if fields.get("attn_layer_indices") is not None or not fields.flag("mamba_use_mlp", True):
        raise UserError(
            f"{fields.where}: layers without attention or without an MLP (attn_layer_indices, mamba_use_mlp) "
            "are not supported in this family"
        )
    # null is as many as query heads
    kv_heads = None if "num_key_value_heads" in fields.values else 8
    config = read_llama_like(fields, kv_heads=kv_heads, epsilon=1e-5, computes=("embedding_multiplier",))
    return _scaled(config, _read_spaces(fields, config), fields)


def _read_spaces(fields: Fields, config: ModelConfig) -> StateSpaces:
    inner = fields.size("mamba_d_ssm", 1024)
    if "mamba_d_ssm" in fields.values and fields.get("mamba_d_ssm") is None:
        inner = int(fields.positive("mamba_expand", 2) * config.hidden_size)
    normed = fields.flag("mamba_rms_norm", False)
    if normed and fields.flag("mamba_norm_before_gate", True):
        raise UserError(
            f"{fields.where}: a norm before the gate (mamba_norm_before_gate with mamba_rms_norm) is not supported"
        )
    spaces = read_state_spaces(fields, range(config.num_layers), inner)
    return replace(spaces, normed=normed, beside_attention=True)


def _scaled(config: ModelConfig, spaces: StateSpaces, fields: Fields) -> ModelConfig:
    """Both with the multipliers where they are computed."""

    def one(name: str) -> float:
        return fields.positive(f"{name}_multiplier", 1.0)

    gate, down = _listed(fields, "mlp_multipliers", 2)
    z, x, b, c, step = _listed(fields, "ssm_multipliers", 5)
    states = down / gate
    entering = one("attention_in") * one("attention_out") / states
    own = one("ssm_in") / entering
    scales = SpaceScales(z * own, x * own, b * own, c * own, step * own, one("ssm_out") / states)
    return replace(
        config,
        recurrent=replace(spaces, scales=scales),
        attention_scale=config.head_dim**-0.5 * one("key") * (one("attention_in") / entering) ** 2,
        embedding_scale=one("embedding") / states,
        rounds_embedding_scale=False,
        logit_scale=one("lm_head"),
        state_scale=states,
        input_norm_scale=entering,
        post_norm_scale=gate,
        rms_norm_eps=config.rms_norm_eps / states**2,
    )


def _listed(fields: Fields, key: str, count: int) -> Sequence[float]:
    listed = fields.get(key)
    if listed is None:
        return [1.0] * count
    if not isinstance(listed, list | tuple) or len(listed) != count:
        raise UserError(f"{fields.where}: {key} must list {count} numbers")
    own = Fields({f"{key}, number {i}": value for i, value in enumerate(listed)}, fields.where)
    return [own.positive(name) for name in own.values]


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    spaces = gguf_state_spaces(gguf, _GGUF)
    return (
        hf_config(gguf)
        | spaces
        | {
            "model_type": "falcon_h1",
            "mamba_d_ssm": spaces["mamba_n_heads"] * spaces["mamba_d_head"],
            "mamba_rms_norm": "blk.0.ssm_norm.weight" in gguf.tensors,
            "mamba_norm_before_gate": False,
        }
    )


def _renamed(row: Weight) -> Weight:
    name = row.name
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    # llama.cpp's converter leaves the ending out of this one
    return replace(row, name=name, gguf=row.gguf.removesuffix(".weight") if row.role == "post_norm" else row.gguf)


FAMILY = Family(
    model_types=("falcon_h1",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=tuple(
        map(_renamed, (*embedding(), *attention(), *state_spaces(), *mlp(norm="pre_ff_layernorm"), *output()))
    ),
)
