"""LFM2 with experts behind the first layers, which are scored by sigmoid and chosen with a correction."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.lfm2_like import gguf_lfm2_like, lfm2_weights, read_lfm2_like
from spec_sdk.model.llama_like import EXPERT_COUNTS
from spec_sdk.model.mixture import correction, experts, gguf_experts_of
from spec_sdk.ops.feed_forward import Routing

_GGUF = "lfm2moe"


def _read_config(fields: Fields) -> ModelConfig:
    if fields.get("layer_types") is None:
        raise UserError(f"{fields.where}: no layer_types")
    width = fields.size("intermediate_size", 7168)
    return read_lfm2_like(
        fields, convolved=(), intermediate_size=width, experts=_experts(fields), computes=EXPERT_COUNTS
    )


def _experts(fields: Fields) -> Experts | None:
    count, per_token = fields.size("num_experts", 32), fields.size("num_experts_per_tok", 4)
    if per_token > count:
        raise UserError(f"{fields.where}: num_experts_per_tok is {per_token}, and there are {count} experts")
    layers = tuple(range(fields.count("num_dense_layers", 2), fields.size("num_hidden_layers")))
    if not layers:
        return None
    return Experts(
        count,
        Routing(
            per_token,
            fields.flag("norm_topk_prob", True),
            "sigmoid",
            fields.positive("routed_scaling_factor", 1.0),
        ),
        fields.size("moe_intermediate_size", 1792),
        None,
        layers,
        corrected=fields.flag("use_expert_bias", True),
    )


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config, meta = gguf_lfm2_like(gguf, _GGUF, computes_experts=True), Fields(gguf.metadata, gguf.where)
    first = meta.count(f"{_GGUF}.leading_dense_block_count", 0)
    if first >= config["num_hidden_layers"]:
        raise UserError(f"{gguf.where}: no layer has experts ({_GGUF}.leading_dense_block_count is {first})")
    return (
        config
        | gguf_experts_of(gguf, _GGUF, scored_by="sigmoid", scaled=True, layer=first)
        | {
            "model_type": "lfm2_moe",
            "num_dense_layers": first,
            "routed_scaling_factor": meta.number(f"{_GGUF}.expert_weights_scale", 1.0) or 1.0,
            "use_expert_bias": f"blk.{first}.exp_probs_b.bias" in gguf.tensors,
        }
    )


FAMILY = Family(
    model_types=("lfm2_moe",),
    gguf_architectures=(_GGUF,),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=lfm2_weights(
        (
            *experts("mlp", gate="w1", up="w3", down="w2"),
            correction("model.layers.{layer}.mlp.expert_bias"),
        )
    ),
)
