"""The weights of recurrent layers, and of the attention beside them: their part of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from spec_sdk.model.config import GatedDeltaNets, ModelConfig, StateSpaces
from spec_sdk.model.weight_table import MODEL, ONE, QUERIES, Dim, Packing, Weight

_LAYER, _BLOCK = "model.layers.{layer}", "blk.{layer}"
GATED_QUERIES = Dim("queries and their gates", lambda config: 2 * QUERIES.of(config))
SHORT_INPUT = Dim("short convolution's input", lambda config: 3 * config.hidden_size)
TOKENS = Dim("tokens of a convolution", lambda config: config.recurrent.tokens if config.recurrent else 0)


def _delta(config: ModelConfig) -> GatedDeltaNets:
    assert isinstance(config.recurrent, GatedDeltaNets), "its recurrent layers are of another kind"
    return config.recurrent


DELTA_KEYS = Dim("delta keys", lambda config: _delta(config).keys)
DELTA_VALUES = Dim("delta values", lambda config: _delta(config).values)
DELTA_CHANNELS = Dim("delta channels", lambda config: 2 * _delta(config).keys + _delta(config).values)
DELTA_HEADS = Dim("delta heads", lambda config: _delta(config).value_heads)
DELTA_KEY_HEADS = Dim("delta key heads", lambda config: _delta(config).key_heads)
DELTA_VALUE = Dim("delta value", lambda config: _delta(config).value_dim)


def _space(config: ModelConfig) -> StateSpaces:
    assert isinstance(config.recurrent, StateSpaces), "its recurrent layers are of another kind"
    return config.recurrent


def _has_convolution_bias(config: ModelConfig) -> bool:
    return isinstance(config.recurrent, StateSpaces) and config.recurrent.convolution_bias


def _is_normed(config: ModelConfig) -> bool:
    return isinstance(config.recurrent, StateSpaces) and config.recurrent.normed


SPACE_INPUT = Dim("state space input", lambda config: _space(config).projected)
SPACE_CHANNELS = Dim("state space channels", lambda config: _space(config).channels)
SPACE_HEADS = Dim("state space heads", lambda config: _space(config).heads)
SPACE_INNER = Dim("state space values", lambda config: _space(config).inner)
SPACE_GROUPS = Dim("state space groups", lambda config: _space(config).groups)
SPACE_GROUP = Dim("values of a state space group", lambda config: _space(config).inner // _space(config).groups)
ALONE = Dim("one of each", lambda config: 1)
"""That llama.cpp's converter adds."""


def is_recurrent(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has a state, in the place of attention or beside it."""
    return config.is_recurrent(layer)


def has_attention(config: ModelConfig, layer: int) -> bool:
    """Whether it has attention."""
    return config.has_attention(layer)


def attention_alone(rows: Iterable[Weight]) -> tuple[Weight, ...]:
    """The attention sub-layer's rows, which recurrent layers do not have, but for the norm before it."""
    return tuple(row if row.role == "input_norm" else replace(row, in_layer=has_attention) for row in rows)


def gated_attention(rows: Iterable[Weight]) -> tuple[Weight, ...]:
    """The same where Q comes with a gate, head by head in one matrix, and layers alone that have attention."""
    return tuple(
        replace(row, role="gated_q", shape=(GATED_QUERIES, MODEL), split=GATED_QUERIES) if row.role == "q" else row
        for row in attention_alone(rows)
    )


def gated_delta_layers() -> tuple[Weight, ...]:
    """Qwen 3.5's: llama.cpp's converter puts value heads into another order (``GatedDeltaNets.tiled``)."""
    return (
        _delta_row("qkv", "in_proj_qkv.weight", "attn_qkv.weight", DELTA_CHANNELS, MODEL),
        _delta_row("gate", "in_proj_z.weight", "attn_gate.weight", DELTA_VALUES, MODEL),
        _delta_row("gain", "in_proj_b.weight", "ssm_beta.weight", DELTA_HEADS, MODEL),
        _delta_row("step", "in_proj_a.weight", "ssm_alpha.weight", DELTA_HEADS, MODEL),
        *_behind_input_projection(),
    )


def gated_delta_layers_by_key_head() -> tuple[Weight, ...]:
    """Qwen 3 Next's: two matrices have all that is made of the input, key head by key head. llama.cpp's converter takes
    the large one apart.
    """
    large, small = (DELTA_KEYS, DELTA_KEYS, DELTA_VALUES, DELTA_VALUES), (DELTA_HEADS, DELTA_HEADS)

    def within(number: int, role: str, gguf: str, heights: tuple[Dim, ...], name: str) -> Weight:
        letter = name[number]
        row = _delta_row(role, f"in_proj_{letter}.weight", gguf, heights[number], MODEL)
        whole = Packing(f"{_LAYER}.linear_attn.in_proj_{name}.weight", heights, number, groups=DELTA_KEY_HEADS)
        return replace(row, packings=(whole,))

    def in_qkv(number: int, row: Weight) -> Weight:
        return replace(row, gguf_packing=Packing(f"{_BLOCK}.attn_qkv.weight", large[:3], number))

    def in_ba(row: Weight) -> Weight:
        return replace(row, gguf_packing=replace(row.packings[0], name=f"{_BLOCK}.ssm_ba.weight"))

    return (
        in_qkv(0, within(0, "q", "ssm_q.weight", large, "qkvz")),
        in_qkv(1, within(1, "k", "ssm_k.weight", large, "qkvz")),
        in_qkv(2, within(2, "v", "ssm_v.weight", large, "qkvz")),
        within(3, "gate", "attn_gate.weight", large, "qkvz"),
        in_ba(within(0, "gain", "ssm_beta.weight", small, "ba")),
        in_ba(within(1, "step", "ssm_alpha.weight", small, "ba")),
        *_behind_input_projection(),
    )


def _behind_input_projection() -> tuple[Weight, ...]:
    return (
        _delta_row("convolution", "conv1d.weight", "ssm_conv1d.weight", DELTA_CHANNELS, ONE, TOKENS),
        _delta_row("decay", "A_log", "ssm_a", DELTA_HEADS, exponential=True),
        _delta_row("bias", "dt_bias", "ssm_dt.bias", DELTA_HEADS),
        _delta_row("norm", "norm.weight", "ssm_norm.weight", DELTA_VALUE),
        _delta_row("output", "out_proj.weight", "ssm_out.weight", MODEL, DELTA_VALUES),
    )


def _delta_row(role: str, name: str, gguf: str, *shape: Dim, exponential: bool = False) -> Weight:
    return Weight(
        f"delta_{role}",
        f"{_LAYER}.linear_attn.{name}",
        f"{_BLOCK}.{gguf}",
        shape,
        in_layer=is_recurrent,
        gguf_negated_exponential=exponential,
    )


def state_spaces() -> tuple[Weight, ...]:
    """Mamba-2's, as Granite 4, Falcon H1 and, under other names, Nemotron H have them."""
    hf = f"{_LAYER}.mamba"

    def row(role: str, name: str, gguf: str, *shape: Dim, gguf_shape: tuple[Dim, ...] = (), **how: Any) -> Weight:
        names = f"{hf}.{name}", f"{_BLOCK}.{gguf}"
        return Weight(f"space_{role}", *names, shape, in_layer=is_recurrent, gguf_shape=gguf_shape, **how)

    heads, spread = (SPACE_HEADS, ALONE), (SPACE_GROUPS, SPACE_GROUP)
    return (
        row("input", "in_proj.weight", "ssm_in.weight", SPACE_INPUT, MODEL),
        row("convolution", "conv1d.weight", "ssm_conv1d.weight", SPACE_CHANNELS, ONE, TOKENS),
        row("convolution_bias", "conv1d.bias", "ssm_conv1d.bias", SPACE_CHANNELS, present=_has_convolution_bias),
        row("decay", "A_log", "ssm_a", SPACE_HEADS, gguf_shape=heads, gguf_negated_exponential=True),
        row("bias", "dt_bias", "ssm_dt.bias", SPACE_HEADS),
        row("skip", "D", "ssm_d", SPACE_HEADS, gguf_shape=heads),
        row("norm", "norm.weight", "ssm_norm.weight", SPACE_INNER, gguf_shape=spread, present=_is_normed),
        row("output", "out_proj.weight", "ssm_out.weight", MODEL, SPACE_INNER),
    )


def short_convolutions() -> tuple[Weight, ...]:
    """LFM2's."""
    hf, gguf = f"{_LAYER}.conv", f"{_BLOCK}.shortconv"

    def row(role: str, name: str, gguf_name: str, *shape: Dim) -> Weight:
        return Weight(
            f"short_{role}", f"{hf}.{name}.weight", f"{gguf}.{gguf_name}.weight", shape, in_layer=is_recurrent
        )

    return (
        row("input", "in_proj", "in_proj", SHORT_INPUT, MODEL),
        row("convolution", "conv", "conv", MODEL, ONE, TOKENS),
        row("output", "out_proj", "out_proj", MODEL, MODEL),
    )
