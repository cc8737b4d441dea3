"""Gemma 4's table of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.llama_like import attention, embedding, gain, mlp, output, output_norms
from spec_sdk.model.varied_loading import GLOBAL, WIDE
from spec_sdk.model.weight_table import (
    EXPERT_MLP,
    EXPERTS,
    HEAD,
    KEYS,
    MLP,
    MODEL,
    NUMBER,
    QUERIES,
    Dim,
    Packing,
    Weight,
    has_experts,
    has_mlp,
    no_layer,
)

_LAYER, _BLOCK = "model.layers.{layer}", "blk.{layer}"


def _global_heads(config: ModelConfig) -> tuple[int, int]:
    heads = config.global_heads
    return (heads.kv_heads, heads.head_dim) if heads else (0, 0)


_GLOBAL_DIMS = {
    QUERIES: Dim("global queries", lambda config: config.num_heads * _global_heads(config)[1]),
    KEYS: Dim("global keys", lambda config: _global_heads(config)[0] * _global_heads(config)[1]),
    HEAD: Dim("global head", lambda config: _global_heads(config)[1]),
}
_WIDE_MLP = Dim("wide mlp", lambda config: 2 * config.intermediate_size)
_LAYER_INPUT = Dim("layer input", lambda config: config.layer_inputs.size if config.layer_inputs else 0)
_LAYER_INPUTS = Dim("layer inputs", lambda config: config.layer_inputs.width if config.layer_inputs else 0)
_LAYER_TOKENS = Dim("tokens of layers", lambda config: config.layer_inputs.vocabulary if config.layer_inputs else 0)
_OF_HEADS = ("q", "k", "v", "o")


def gemma4_weights() -> tuple[Weight, ...]:
    """Of a text model alone."""
    return (
        *embedding(),
        *_layer_input_embedding(),
        *_attention(),
        *_mlp(),
        *output_norms(),
        *_experts(),
        *_layer_input(),
        replace(
            gain("layer_scale", f"{_LAYER}.layer_scalar", f"{_BLOCK}.layer_output_scale", NUMBER),
            name=f"{_LAYER}.layer_scalar",
        ),
        *output(),
    )


def _attention() -> Iterable[Weight]:
    """Rows of layers with a window, and of those without; neither has what a layer does not make itself."""
    for row in attention():
        part = row.role.removesuffix("_bias").removesuffix("_norm")
        if part not in _OF_HEADS:
            yield row
            continue
        dims = tuple(_GLOBAL_DIMS.get(dim, dim) for dim in row.shape)
        yield replace(
            row, in_layer=_in_layers(part, False), idle_in_layer=_attends_to_others if part in "kv" else no_layer
        )
        yield replace(row, role=GLOBAL + row.role, shape=dims, split=None, in_layer=_in_layers(part, True))


def _attends_to_others(config: ModelConfig, layer: int) -> bool:
    """The small models were published with what makes K and V of such layers, too."""
    return config.kv_layer(layer) != layer


def _in_layers(part: str, is_global: bool) -> Callable[[ModelConfig, int], bool]:
    def has(config: ModelConfig, layer: int) -> bool:
        if config.is_global(layer) != is_global:
            return False
        if part == "v" and config.values_are_keys(layer):
            return False
        return part in ("q", "o") or config.kv_layer(layer) == layer

    return has


def _mlp() -> Iterable[Weight]:
    for row in mlp("pre_feedforward_layernorm"):
        if MLP not in row.shape:
            yield row
            continue
        wide = tuple(_WIDE_MLP if dim is MLP else dim for dim in row.shape)
        yield replace(row, in_layer=lambda config, layer: has_mlp(config, layer) and layer not in config.wide_mlps)
        yield replace(
            row,
            role=WIDE + row.role,
            shape=wide,
            split=None,
            in_layer=lambda config, layer: has_mlp(config, layer) and layer in config.wide_mlps,
        )


def _experts() -> tuple[Weight, ...]:
    router, each = f"{_LAYER}.router", f"{_LAYER}.experts.{{expert}}"
    both, stacked = (EXPERT_MLP, EXPERT_MLP), f"{_LAYER}.experts.gate_up_proj"
    stacked_gguf = f"{_BLOCK}.ffn_gate_up_exps.weight"
    rows = (
        Weight("router", f"{router}.proj.weight", f"{_BLOCK}.ffn_gate_inp.weight", (EXPERTS, MODEL)),
        Weight("router_scale", f"{router}.scale", f"{_BLOCK}.ffn_gate_inp.scale", (MODEL,)),
        Weight("expert_scale", f"{router}.per_expert_scale", f"{_BLOCK}.ffn_down_exps.scale", (EXPERTS,)),
        gain("mlp_part_norm", f"{_LAYER}.post_feedforward_layernorm_1", f"{_BLOCK}.post_ffw_norm_1"),
        gain("experts_norm", f"{_LAYER}.pre_feedforward_layernorm_2", f"{_BLOCK}.pre_ffw_norm_2"),
        gain("experts_output_norm", f"{_LAYER}.post_feedforward_layernorm_2", f"{_BLOCK}.post_ffw_norm_2"),
        *(
            Weight(
                f"expert_{part}",
                f"{each}.{part}_proj.weight",
                f"{_BLOCK}.ffn_{part}_exps.weight",
                (EXPERT_MLP, MODEL),
                EXPERT_MLP,
                packings=(Packing(stacked, both, number),),
                gguf_packing=Packing(stacked_gguf, both, number),
            )
            for number, part in enumerate(("gate", "up"))
        ),
        Weight(
            "expert_down",
            f"{each}.down_proj.weight",
            f"{_BLOCK}.ffn_down_exps.weight",
            (MODEL, EXPERT_MLP),
            EXPERT_MLP,
            packings=(Packing(f"{_LAYER}.experts.down_proj"),),
        ),
    )
    return tuple(replace(row, in_layer=has_experts) for row in rows)


def _layer_input_embedding() -> tuple[Weight, ...]:
    """What the inputs of all layers are made of."""
    rows = (
        Weight(
            "layer_embedding",
            "model.embed_tokens_per_layer.weight",
            "per_layer_token_embd.weight",
            (_LAYER_TOKENS, _LAYER_INPUTS),
        ),
        Weight(
            "layer_projection",
            "model.per_layer_model_projection.weight",
            "per_layer_model_proj.weight",
            (_LAYER_INPUTS, MODEL),
        ),
        gain("layer_projection_norm", "model.per_layer_projection_norm", "per_layer_proj_norm", _LAYER_INPUT),
    )
    return tuple(replace(row, present=_has_layer_inputs) for row in rows)


def _layer_input() -> tuple[Weight, ...]:
    """What a layer makes of its own."""
    gate = f"{_LAYER}.per_layer_input_gate.weight", f"{_BLOCK}.inp_gate.weight"
    rows = (
        Weight("layer_gate", *gate, (_LAYER_INPUT, MODEL)),
        Weight("layer_out", f"{_LAYER}.per_layer_projection.weight", f"{_BLOCK}.proj.weight", (MODEL, _LAYER_INPUT)),
        gain("layer_input_norm", f"{_LAYER}.post_per_layer_input_norm", f"{_BLOCK}.post_norm"),
    )
    return tuple(replace(row, present=_has_layer_inputs) for row in rows)


def _has_layer_inputs(config: ModelConfig) -> bool:
    return config.layer_inputs is not None
