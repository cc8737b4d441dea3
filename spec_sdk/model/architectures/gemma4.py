"""Gemma 4, its text: heads of two shapes, layers that share K and V, an input of each layer, maybe experts beside MLPs.

Layers with a window have smaller heads than those without. In the larger models what makes K makes V in the latter; in
the small ones the last layers attend to K and V of earlier ones, and every layer is told of the token.
"""

from __future__ import annotations

from dataclasses import replace

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, GlobalHeads, LayerInputs, ModelConfig, Rope, RopeScaling
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gemma4_gguf import gemma4_config
from spec_sdk.model.gemma4_weights import gemma4_weights
from spec_sdk.model.gemma_like import GELU_TANH, read_gemma_like, softcap
from spec_sdk.model.llama_like import windows_by_type
from spec_sdk.model.rope_fields import PARTIAL, SPELLINGS, read_rope, ropes_by_type, rotated_dims
from spec_sdk.ops.feed_forward import Routing

_PATTERN, _GLOBAL_HEAD_DIM = 6, 512
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPES = {
    _FULL: {"rope_type": "proportional", PARTIAL: 0.25, "rope_theta": 1e6},
    _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
_SIZES = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
}
_UNIFIED = "gemma4_unified_text"
"""Its layers are given nothing unless its configuration says so."""
_UNIFIED_SIZES = {"max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0}
_COMPUTES = ("final_logit_softcapping", "num_experts")


def read_text(fields: Fields) -> ModelConfig:
    """The configuration of the text model. Raises UserError for what is not computed and for impossible values."""
    own = _UNIFIED_SIZES if fields.get("model_type") == _UNIFIED else {}
    fields = Fields({**_SIZES, **own, "rope_parameters": _ROPES, **fields.values}, fields.where)
    _refuse_bidirectional(fields)
    layers = fields.size("num_hidden_layers")
    slides = [(layer + 1) % _PATTERN != 0 and layer != layers - 1 for layer in range(layers)]
    window = fields.size_or_none("sliding_window", 512) or fields.size("max_position_embeddings")
    windows = windows_by_type(fields, window, slides)
    whole, windowed = ropes_by_type(fields, 1e6, 1e4)
    # the two kinds of layers have rotary positions of their own, and the global ones' are of another size
    config = read_gemma_like(
        Fields({**windowed.values, "use_bidirectional_attention": None}, fields.where),
        fields.text("hidden_activation", GELU_TANH),
        kv_heads=4,
        qk_norm=True,
        windows=windows,
        computes=_COMPUTES,
    )
    heads = _global_heads(fields, windows, config)
    shared = _kv_sources(fields, windows)
    wide = fields.flag("use_double_wide_mlp", False)
    return replace(
        config,
        windows=tuple(windows) if any(windows) else (),
        attention_scale=1.0,
        logit_softcap=softcap(fields, "final_logit_softcapping", None),
        windowed_rope=Rope(*read_rope(windowed, rotated_dims(windowed, config.head_dim), 1e4)),
        global_heads=heads,
        global_rope=_global_rope(whole, heads.head_dim),
        kv_sources=shared,
        wide_mlps=tuple(layer for layer, source in enumerate(shared) if wide and source != layer),
        layer_inputs=_layer_inputs(fields, layers),
        experts=_experts(fields, layers),
    )


def _refuse_bidirectional(fields: Fields) -> None:
    """``vision``: tokens of a picture see each other, which says nothing of a text."""
    if (said := fields.get("use_bidirectional_attention")) not in (None, False, "vision"):
        raise UserError(
            f"{fields.where}: attention to later tokens (use_bidirectional_attention={said}) is not supported"
        )


def _global_heads(fields: Fields, windows: list[int | None], config: ModelConfig) -> GlobalHeads:
    """Of layers without a window, from config.json of transformers before 5.10 or after."""
    values_are_keys, kv_heads = fields.flag("attention_k_eq_v", False), config.num_kv_heads
    if fields.get("per_layer_config") is not None:
        own = _said_of_layers(fields, windows)
        kv_heads, head_dim = own.size("num_key_value_heads", kv_heads), own.size("head_dim", config.head_dim)
    else:
        if values_are_keys:
            kv_heads = fields.size("num_global_key_value_heads", kv_heads)
        head_dim = fields.size("global_head_dim", _GLOBAL_HEAD_DIM)
    if config.num_heads % kv_heads:
        raise UserError(
            f"{fields.where}: {config.num_heads} attention heads do not divide into {kv_heads} key-value heads"
        )
    if head_dim % 2:
        raise UserError(f"{fields.where}: global_head_dim is {head_dim}, rotary positions need an even one")
    return GlobalHeads(kv_heads, head_dim, values_are_keys)


def _said_of_layers(fields: Fields, windows: list[int | None]) -> Fields:
    """What ``per_layer_config`` says of every layer without a window."""
    each = fields.section("per_layer_config")
    layers = {str(layer) for layer, window in enumerate(windows) if window is None}
    said = [each.section(layer) for layer in each.values]
    if (each.values and set(each.values) != layers) or any(one.values != said[0].values for one in said):
        raise UserError(f"{each.where}: differs between the layers of {_FULL}, or is of others, which is not read")
    if unknown := sorted({key for one in said for key in one.values} - {"head_dim", "num_key_value_heads"}):
        raise UserError(f"{each.where}: {unknown[0]} of single layers is not supported")
    return said[0] if said else Fields({}, each.where)


def _global_rope(fields: Fields, head_dim: int) -> Rope:
    """Of the layers without a window: a part of a head is rotated, as fast as if all of it were."""
    key = next((k for k in SPELLINGS if fields.get(k)), None)
    section = Fields({}, fields.where) if key is None else fields.section(key)
    if section.text("rope_type", "default") != "proportional":
        return Rope(*read_rope(fields, head_dim, 1e6))
    dims = 2 * int(section.positive(PARTIAL, 1.0) * head_dim // 2)
    if not 0 < dims <= head_dim:
        raise UserError(f"{section.where}: {PARTIAL} rotates {dims} of a head's {head_dim} dimensions")
    factor, positions = section.positive("factor", 1.0), fields.size("max_position_embeddings")
    scaling = None
    if factor != 1.0:
        scaling = RopeScaling("linear", factor, original_max_position=positions, context=positions)
    return Rope(section.positive("rope_theta", 1e6), scaling, dims, proportional=True)


def _kv_sources(fields: Fields, windows: list[int | None]) -> tuple[int, ...]:
    """The last ``num_kv_shared_layers`` attend to K and V of the last layer of their kind before them."""
    layers, shared = len(windows), fields.count("num_kv_shared_layers", 0)
    if not shared:
        return ()
    own = [(layer, window is None) for layer, window in enumerate(windows[: max(0, layers - shared)])]
    sources = [layer for layer, _ in own]
    for layer, window in enumerate(windows[len(own) :], len(own)):
        alike = [source for source, is_global in own if is_global == (window is None)]
        if not alike:
            raise UserError(
                f"{fields.where}: num_kv_shared_layers is {shared} of {layers} layers, so that layer {layer} has none "
                "of its kind before it to attend to"
            )
        sources.append(alike[-1])
    return tuple(sources)


def _layer_inputs(fields: Fields, layers: int) -> LayerInputs | None:
    size = fields.count("hidden_size_per_layer_input", 256)
    if not size:
        return None
    vocabulary = fields.size("vocab_size_per_layer_input", 262144)
    if vocabulary < fields.size("vocab_size"):
        raise UserError(
            f"{fields.where}: vocab_size_per_layer_input is {vocabulary}, less than vocab_size, "
            f"{fields.size('vocab_size')}"
        )
    return LayerInputs(size, vocabulary, layers, tuple(range(layers)))


def _experts(fields: Fields, layers: int) -> Experts | None:
    if not fields.flag("enable_moe_block", False):
        return None
    count, per_token = fields.size("num_experts"), fields.size("top_k_experts")
    if per_token > count:
        raise UserError(f"{fields.where}: top_k_experts is {per_token}, and there are {count} experts")
    width = fields.size("moe_intermediate_size")
    return Experts(count, Routing(per_token, True), width, None, tuple(range(layers)), beside_mlp=True)


FAMILY = Family(
    model_types=("gemma4_text", _UNIFIED),
    gguf_architectures=("gemma4",),
    read_config=read_text,
    read_gguf=gemma4_config,
    weights=gemma4_weights(),
)
