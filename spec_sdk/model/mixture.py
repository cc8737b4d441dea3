"""Mixtures of experts: their part of a table of weights, and how config.json and GGUF files tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    Dim,
    Packing,
    Weight,
    has_experts,
    has_gated_expert,
    has_shared_expert,
)
from spec_sdk.ops.feed_forward import Routing, Scoring

_LAYER, _FFN = "model.layers.{layer}", "blk.{layer}.ffn"
_GATING: dict[Scoring, int] = {"softmax": 1, "sigmoid": 2}
"""llama.cpp's numbers of them."""


def experts(module: str, gate: str, up: str, down: str, published_as_one: bool = False) -> tuple[Weight, ...]:
    """Router and experts. ``module`` is what a layer calls the mixture, the others what an expert calls its parts.

    transformers 5 keeps all experts of a layer in one tensor; it writes checkpoints so when told not to write them in
    their original format. ``published_as_one``: the family's are published so.
    """
    own, later = f"{_LAYER}.{module}", f"{_LAYER}.mlp"
    joined = _AllExperts(f"{later}.experts.gate_up_proj", f"{later}.experts.down_proj", published_as_one)
    return (
        _router(f"{own}.gate.weight", f"{later}.gate.weight"),
        *_experts(own, gate, up, down, [joined]),
    )


def experts_in_two(module: str) -> tuple[Weight, ...]:
    """The same of Granite, whose checkpoints have the experts of a layer in two tensors from the beginning."""
    hf = f"{_LAYER}.{module}"
    joined = [
        _AllExperts(f"{hf}.input_linear.weight", f"{hf}.output_linear.weight"),
        _AllExperts(f"{hf}.experts.gate_up_proj", f"{hf}.experts.down_proj", published=False),
    ]
    return (
        _router(f"{hf}.router.layer.weight", f"{hf}.router.weight"),
        *_experts(hf, "w1", "w3", "w2", joined),
    )


@dataclass(frozen=True)
class _AllExperts:
    """The two tensors of all experts of a layer."""

    gate_up: str
    down: str
    published: bool = True


def biased_experts() -> tuple[Weight, ...]:
    """Router and experts of gpt-oss, all with biases, those of a layer in one tensor; of gates and units of experts
    rows take turns. Matrices in floating point are stored transposed.
    """
    hf, both = f"{_LAYER}.mlp", (EXPERT_MLP, EXPERT_MLP)

    def part(role: str, name: str, shape: tuple[Dim, Dim], heights: tuple[Dim, ...], number: int) -> Sequence[Weight]:
        own, stacked = f"{hf}.experts.{{expert}}.{role}_proj", f"{hf}.experts.{name}"
        of_all = Packing(stacked, heights, number, interleaved=bool(heights))
        gguf = f"{_FFN}_{role}_exps"
        return (
            Weight(
                f"expert_{role}",
                f"{own}.weight",
                f"{gguf}.weight",
                shape,
                EXPERT_MLP,
                packings=(replace(of_all, transposed=True),),
                in_layer=has_experts,
            ),
            Weight(
                f"expert_{role}_bias",
                f"{own}.bias",
                f"{gguf}.bias",
                shape[:1],
                split=EXPERT_MLP if shape[0] is EXPERT_MLP else None,
                after_sum=shape[0] is not EXPERT_MLP,
                packings=(replace(of_all, name=f"{stacked}_bias"),),
                in_layer=has_experts,
            ),
        )

    return (
        _router(f"{hf}.router.weight", f"{hf}.router.weight"),
        Weight("router_bias", f"{hf}.router.bias", f"{_FFN}_gate_inp.bias", (EXPERTS,), in_layer=has_experts),
        *part("gate", "gate_up_proj", (EXPERT_MLP, MODEL), both, 0),
        *part("up", "gate_up_proj", (EXPERT_MLP, MODEL), both, 1),
        *part("down", "down_proj", (MODEL, EXPERT_MLP), (), 0),
    )


def _router(name: str, later: str) -> Weight:
    """``later``: what transformers 5 calls it."""
    packings = (Packing(later, published=False),) if later != name else ()
    return Weight("router", name, f"{_FFN}_gate_inp.weight", (EXPERTS, MODEL), packings=packings, in_layer=has_experts)


def _experts(module: str, gate: str, up: str, down: str, joined: Sequence[_AllExperts]) -> tuple[Weight, ...]:
    each, rows, columns = f"{module}.experts.{{expert}}", (EXPERT_MLP, MODEL), (MODEL, EXPERT_MLP)
    both = EXPERT_MLP, EXPERT_MLP
    gates, ups = (tuple(Packing(of.gate_up, both, part, of.published) for of in joined) for part in (0, 1))
    downs = tuple(Packing(of.down, published=of.published) for of in joined)
    return tuple(
        Weight(
            f"expert_{role}",
            f"{each}.{name}.weight",
            f"{_FFN}_{role}_exps.weight",
            shape,
            EXPERT_MLP,
            packings=packings,
            in_layer=has_experts,
        )
        for role, name, shape, packings in (
            ("gate", gate, rows, gates),
            ("up", up, rows, ups),
            ("down", down, columns, downs),
        )
    )


def correction(name: str, later: str | None = None, shape: tuple[Dim, ...] = (EXPERTS,)) -> Weight:
    """What is added to an expert's score for the choice. ``later``: what transformers 5 calls it."""
    return Weight(
        "router_correction",
        name,
        "blk.{layer}.exp_probs_b.bias",
        shape,
        packings=() if later is None else (Packing(later, published=False),),
        present=lambda config: config.experts is not None and config.experts.corrected,
        in_layer=has_experts,
    )


def shared_expert(module: str = "shared_expert") -> tuple[Weight, ...]:
    """The expert that every token has besides, and its gate where it has one."""
    hf = f"{_LAYER}.mlp.{module}"
    rows, columns = (SHARED_MLP, MODEL), (MODEL, SHARED_MLP)
    return tuple(
        Weight(
            f"shared_{part}",
            f"{hf}.{part}_proj.weight",
            f"{_FFN}_{part}_shexp.weight",
            shape,
            SHARED_MLP,
            in_layer=has_shared_expert,
        )
        for part, shape in (("gate", rows), ("up", rows), ("down", columns))
    ) + (
        Weight(
            "shared_router",
            f"{hf}_gate.weight",
            f"{_FFN}_gate_inp_shexp.weight",
            (ONE, MODEL),
            in_layer=has_gated_expert,
        ),
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
    return Experts(count, Routing(per_token, normalized), intermediate_size, shared_intermediate_size, sparse)


def gguf_experts(
    gguf: GGUFFile,
    architecture: str,
    *,
    scored_by: Scoring = "softmax",
    scaled: bool = False,
    layer: int = 0,
    gated: bool = True,
) -> dict[str, Any]:
    """What config.json would say of a GGUF file's experts; nothing if it has none.

    ``scored_by``, ``scaled``: how the family routes. ``layer``: one that has experts; ``gated``: whether these have
    gates. Raises UserError for another way of routing.
    """
    meta = Fields(gguf.metadata, gguf.where)
    if not meta.number(f"{architecture}.expert_count", 0):
        return {}
    if meta.number(f"{architecture}.expert_gating_func", 0) not in (0, _GATING[scored_by]):
        raise UserError(f"{gguf.where}: {architecture}.expert_gating_func is not {scored_by}, which is not supported")
    if not scaled and meta.number(f"{architecture}.expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise UserError(f"{gguf.where}: {architecture}.expert_weights_scale is not supported")
    if meta.size(f"{architecture}.expert_count") == 1:
        raise UserError(f"{gguf.where}: {architecture}.expert_count is 1, which is no mixture")
    stacked = f"blk.{layer}.ffn_{'gate' if gated else 'up'}_exps.weight"
    if len(gguf.shapes.get(stacked, ())) != 3:
        raise UserError(f"{gguf.where}: tensor '{stacked}' of all experts is missing; a tensor per expert is not read")
    return {
        "num_experts": meta.size(f"{architecture}.expert_count"),
        "num_experts_per_tok": meta.size(f"{architecture}.expert_used_count"),
        # older files lack the length, and the tensor knows it
        "moe_intermediate_size": meta.size(f"{architecture}.expert_feed_forward_length", gguf.shapes[stacked][1]),
    }


def gguf_experts_of(
    gguf: GGUFFile, architecture: str, *, scored_by: Scoring = "softmax", scaled: bool = False, layer: int = 0
) -> dict[str, Any]:
    """The same of a family whose models all have experts. Raises UserError for a file without, too."""
    mixture = gguf_experts(gguf, architecture, scored_by=scored_by, scaled=scaled, layer=layer)
    if not mixture:
        raise UserError(f"{gguf.where}: has no {architecture}.expert_count")
    return mixture
