"""Mixtures of experts: their part of a table of weights, and how config.json and GGUF files tell of them."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.weight_table import (
    EXPERT_MLP,
    EXPERTS,
    MODEL,
    ONE,
    SHARED_MLP,
    Packing,
    Weight,
    has_experts,
    has_shared_expert,
)

_LAYER, _FFN = "model.layers.{layer}", "blk.{layer}.ffn"
_SOFTMAX = 1
"""llama.cpp's number of this gating function."""


def experts(module: str, gate: str, up: str, down: str) -> tuple[Weight, ...]:
    """Router and experts. ``module`` is what a layer calls the mixture, the others what an expert calls its parts.

    transformers 5 keeps all experts of a layer in one tensor; it writes checkpoints so when told not to write them in
    their original format.
    """
    packed = f"{_LAYER}.mlp.experts"
    router = Packing(f"{_LAYER}.mlp.gate.weight", published=False) if module != "mlp" else None
    return (
        _router(f"{_LAYER}.{module}.gate.weight", router),
        *_experts(f"{_LAYER}.{module}", gate, up, down, f"{packed}.gate_up_proj", f"{packed}.down_proj", False),
    )


def experts_in_two(module: str) -> tuple[Weight, ...]:
    """The same of Granite, whose checkpoints have the experts of a layer in two tensors from the beginning."""
    hf = f"{_LAYER}.{module}"
    return (
        _router(f"{hf}.router.layer.weight"),
        *_experts(hf, "w1", "w3", "w2", f"{hf}.input_linear.weight", f"{hf}.output_linear.weight", True),
    )


def _router(name: str, packing: Packing | None = None) -> Weight:
    return Weight("router", name, f"{_FFN}_gate_inp.weight", (EXPERTS, MODEL), packing=packing, in_layer=has_experts)


def _experts(
    module: str, gate: str, up: str, down: str, gate_up: str, all_down: str, published: bool
) -> tuple[Weight, ...]:
    each = f"{module}.experts.{{expert}}"
    return (
        Weight(
            "expert_gate",
            f"{each}.{gate}.weight",
            f"{_FFN}_gate_exps.weight",
            (EXPERT_MLP, MODEL),
            EXPERT_MLP,
            packing=Packing(gate_up, (EXPERT_MLP, EXPERT_MLP), part=0, published=published),
            in_layer=has_experts,
        ),
        Weight(
            "expert_up",
            f"{each}.{up}.weight",
            f"{_FFN}_up_exps.weight",
            (EXPERT_MLP, MODEL),
            EXPERT_MLP,
            packing=Packing(gate_up, (EXPERT_MLP, EXPERT_MLP), part=1, published=published),
            in_layer=has_experts,
        ),
        Weight(
            "expert_down",
            f"{each}.{down}.weight",
            f"{_FFN}_down_exps.weight",
            (MODEL, EXPERT_MLP),
            EXPERT_MLP,
            packing=Packing(all_down, published=published),
            in_layer=has_experts,
        ),
    )


def shared_expert() -> tuple[Weight, ...]:
    """The expert that every token has besides, and its gate."""
    hf = f"{_LAYER}.mlp.shared_expert"
    rows, columns = (SHARED_MLP, MODEL), (MODEL, SHARED_MLP)
    return tuple(
        Weight(role, name, gguf, shape, split, in_layer=has_shared_expert)
        for role, name, gguf, shape, split in (
            ("shared_gate", f"{hf}.gate_proj.weight", f"{_FFN}_gate_shexp.weight", rows, SHARED_MLP),
            ("shared_up", f"{hf}.up_proj.weight", f"{_FFN}_up_shexp.weight", rows, SHARED_MLP),
            ("shared_down", f"{hf}.down_proj.weight", f"{_FFN}_down_shexp.weight", columns, SHARED_MLP),
            ("shared_router", f"{hf}_gate.weight", f"{_FFN}_gate_inp_shexp.weight", (ONE, MODEL), None),
        )
    )


def read_experts(
    fields: Fields,
    *,
    count: int,
    per_token: int,
    intermediate_size: int,
    normalized: bool,
    shared_intermediate_size: int | None = None,
) -> Experts | None:
    """The mixture of a model whose config.json may leave out what it has in common with these; None without experts.

    Every ``decoder_sparse_step``-th layer has one, unless it is among ``mlp_only_layers``. Raises UserError for
    impossible values.
    """
    key = "num_experts" if fields.get("num_experts") is not None else "num_local_experts"
    if fields.get(key) == 0:
        return None
    count, per_token = fields.size(key, count), fields.size("num_experts_per_tok", per_token)
    if per_token > count:
        raise UserError(f"{fields.where}: num_experts_per_tok is {per_token}, and there are {count} experts")
    step, layers = fields.size("decoder_sparse_step", 1), range(fields.size("num_hidden_layers"))
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and layer in layers for layer in dense):
        raise UserError(f"{fields.where}: mlp_only_layers is {dense!r}, not a list of layers below {len(layers)}")
    sparse = tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0)
    if not sparse:
        return None
    return Experts(count, per_token, intermediate_size, normalized, shared_intermediate_size, sparse)


def gguf_experts(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    """What config.json would say of a GGUF file's experts; nothing if it has none. llama.cpp has them in every layer.

    Raises UserError for a way of routing that is not computed.
    """
    meta = Fields(gguf.metadata, gguf.where)
    if not meta.number(f"{architecture}.expert_count", 0):
        return {}
    if meta.number(f"{architecture}.expert_gating_func", _SOFTMAX) not in (0, _SOFTMAX):
        raise UserError(f"{gguf.where}: {architecture}.expert_gating_func is not softmax, which is not supported")
    if meta.number(f"{architecture}.expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise UserError(f"{gguf.where}: {architecture}.expert_weights_scale is not supported")
    stacked = "blk.0.ffn_gate_exps.weight"
    if len(gguf.shapes.get(stacked, ())) != 3:
        raise UserError(f"{gguf.where}: tensor '{stacked}' of all experts is missing; a tensor per expert is not read")
    return {
        "num_experts": meta.size(f"{architecture}.expert_count"),
        "num_experts_per_tok": meta.size(f"{architecture}.expert_used_count"),
        # older files lack the length, and the tensor knows it
        "moe_intermediate_size": meta.size(f"{architecture}.expert_feed_forward_length", gguf.shapes[stacked][1]),
    }
