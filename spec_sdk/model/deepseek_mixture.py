"""Mixtures of experts of DeepSeek-V3's kind: scores by sigmoid, chosen with a correction, a shared expert that is not
gated, MLPs in the first layers. arXiv:2412.19437, §2.1.2. Those of DeepSeek-V2 have probabilities and no correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.mixture import correction, experts, gguf_experts_of, shared_expert
from spec_sdk.model.weight_table import Weight
from spec_sdk.ops.feed_forward import Routing, Scoring

COUNTED_AS = "n_routed_experts"
"""What config.json calls their number."""


def deepseek_experts(published_as_one: bool = False) -> tuple[Weight, ...]:
    """Router with its correction, experts and the shared one. ``published_as_one``: as :func:`experts` has it."""
    return (
        *experts("mlp", "gate_proj", "up_proj", "down_proj", published_as_one),
        correction("model.layers.{layer}.mlp.gate.e_score_correction_bias"),
        *shared_expert("shared_experts"),
    )


def check_choice(fields: Fields, computed: Mapping[str, Any]) -> None:
    """Raise UserError where config.json says otherwise how experts are chosen than it is computed."""
    for key, known in computed.items():
        if fields.get(key) not in (None, known):
            raise UserError(f"{fields.where}: {key}={fields.get(key)} is not supported, only {known}")


def read_deepseek_experts(
    fields: Fields,
    *,
    count: int,
    per_token: int,
    width: int,
    shared: int,
    first: int,
    normalized: bool,
    scale: float = 1.0,
    groups: int = 1,
    groups_of_token: int = 1,
    scored_by: Scoring = "sigmoid",
) -> Experts | None:
    """The mixture of a model whose config.json may leave out what is given here; None where no layer has one.

    ``width``: of an expert; ``shared``: how many of that width the shared one is worth; ``first``: layers that have
    MLPs, unless ``mlp_layer_types`` names each layer's. ``scored_by``: a choice among probabilities has no correction.
    Raises UserError for impossible values.
    """
    where = fields.where
    count, per_token = fields.size(COUNTED_AS, count), fields.size("num_experts_per_tok", per_token)
    width, shared = fields.size("moe_intermediate_size", width), fields.count("n_shared_experts", shared)
    groups, groups_of_token = fields.size("n_group", groups), fields.size("topk_group", groups_of_token)
    if fields.size("moe_layer_freq", 1) != 1:
        raise UserError(f"{where}: moe_layer_freq is {fields.get('moe_layer_freq')}, and only 1 is supported")
    if count % groups or (groups > 1 and count // groups < 2):
        raise UserError(f"{where}: {count} experts are not {groups} groups (n_group) of at least two")
    if groups_of_token > groups:
        raise UserError(f"{where}: topk_group is {groups_of_token}, and there are {groups} groups")
    most = count // groups * groups_of_token
    if per_token > most:
        raise UserError(f"{where}: num_experts_per_tok is {per_token}, and a token may choose among {most} experts")
    layers = _sparse_layers(fields, first)
    if not layers:
        return None
    return Experts(
        count,
        Routing(
            per_token,
            fields.flag("norm_topk_prob", normalized),
            scored_by,
            fields.positive("routed_scaling_factor", scale),
            groups,
            groups_of_token,
        ),
        width,
        shared * width or None,
        layers,
        corrected=scored_by == "sigmoid",
        shared_gated=False,
    )


def _sparse_layers(fields: Fields, first: int) -> tuple[int, ...]:
    layers, kinds = fields.size("num_hidden_layers"), fields.get("mlp_layer_types")
    if kinds is None:
        return tuple(range(fields.count("first_k_dense_replace", first), layers))
    if not isinstance(kinds, list) or len(kinds) < layers or not {*map(str, kinds)} <= {"dense", "sparse"}:
        raise UserError(f"{fields.where}: mlp_layer_types does not say of each of {layers} layers dense or sparse")
    # a prediction module may be counted, too
    return tuple(layer for layer in range(layers) if kinds[layer] == "sparse")


def gguf_deepseek_experts(
    gguf: GGUFFile, architecture: str, scored_by: Scoring = "sigmoid", grouped: bool = False
) -> dict[str, Any]:
    """What config.json would say of a GGUF file's experts. ``grouped``: whether the family may choose among groups.

    Raises UserError for a file without, or routed otherwise.
    """
    meta = Fields(gguf.metadata, gguf.where)
    first = meta.count(f"{architecture}.leading_dense_block_count", 0)
    if first >= meta.size(f"{architecture}.block_count"):
        raise UserError(f"{gguf.where}: no layer has experts ({architecture}.leading_dense_block_count is {first})")
    mixture = gguf_experts_of(gguf, architecture, scored_by=scored_by, scaled=True, layer=first)
    groups = meta.count(f"{architecture}.expert_group_count", 1) or 1
    if groups > 1 and not grouped:
        raise UserError(f"{gguf.where}: {architecture}.expert_group_count is not supported in this family")
    return {
        COUNTED_AS: mixture["num_experts"],
        "num_experts_per_tok": mixture["num_experts_per_tok"],
        "moe_intermediate_size": mixture["moe_intermediate_size"],
        "n_shared_experts": meta.count(f"{architecture}.expert_shared_count", 0),
        "first_k_dense_replace": first,
        "routed_scaling_factor": meta.number(f"{architecture}.expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": meta.flag(f"{architecture}.expert_weights_norm", False),
        "n_group": groups,
        "topk_group": meta.count(f"{architecture}.expert_group_used_count", 1) or 1,
    }
