"""ERNIE 4.5 with a mixture of experts, chosen by probabilities and a correction; MLPs in the first layers."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import correction, experts, gguf_experts_of, shared_expert
from spec_sdk.model.weight_table import EXPERTS, ONE
from spec_sdk.ops.feed_forward import Routing


def _read_config(fields: Fields) -> ModelConfig:
    if fields.flag("use_bias", False):
        raise UserError(f"{fields.where}: biases (use_bias) are not supported in this family")
    return read_llama_like(
        fields,
        kv_heads=4,
        tied=True,
        theta=500000.0,
        epsilon=1e-5,
        rotary_neighbours=True,
        experts=_read_experts(fields),
    )


def _read_experts(fields: Fields) -> Experts | None:
    """None where no layer has any."""
    count, per_token = fields.size("moe_num_experts", 64), fields.size("moe_k", 6)
    if per_token > count:
        raise UserError(f"{fields.where}: moe_k is {per_token}, and there are {count} experts")
    layers = fields.size("num_hidden_layers")
    first, last = fields.count("moe_layer_start_index", 1), fields.number("moe_layer_end_index", -1)
    interval = fields.size("moe_layer_interval", 1)
    end = layers if last == -1 else min(int(last) + 1, layers)
    sparse = tuple(layer for layer in range(first, end) if (layer + 1) % interval == 0)
    if not sparse:
        return None
    width = fields.size("moe_intermediate_size", 1536)
    shared = fields.count("moe_num_shared_experts", 2) * width
    routing = Routing(per_token, normalized=True, least_sum=fields.positive("moe_norm_min", 1e-12))
    return Experts(count, routing, width, shared or None, sparse, corrected=True, shared_gated=False)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    architecture = "ernie4_5-moe"
    config, meta = hf_config(gguf, computes_experts=True), Fields(gguf.metadata, gguf.where)
    first = meta.count(f"{architecture}.leading_dense_block_count", 0)
    interval = meta.size(f"{architecture}.interleave_moe_layer_step", 1)
    layers = range(first, config["num_hidden_layers"])
    layer = next((i for i in layers if (i + 1) % interval == 0), None)
    if layer is None:
        raise UserError(f"{gguf.where}: no layer has experts ({architecture}.leading_dense_block_count is {first})")
    mixture = gguf_experts_of(gguf, architecture, layer=layer)
    width = mixture["moe_intermediate_size"]
    shared = gguf.shapes.get(f"blk.{layer}.ffn_gate_shexp.weight", (0,))[0]
    return config | {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": mixture["num_experts"],
        "moe_k": mixture["num_experts_per_tok"],
        "moe_intermediate_size": width,
        "moe_num_shared_experts": shared // width,
        "moe_layer_start_index": first,
        "moe_layer_interval": interval,
        "use_bias": config["attention_bias"],
    }


_CORRECTION = "moe_statics.e_score_correction_bias"

FAMILY = Family(
    model_types=("ernie4_5_moe",),
    gguf_architectures=("ernie4_5-moe",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(
        *embedding(),
        *attention(),
        *mlp(),
        *experts("mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        correction(
            f"model.layers.{{layer}}.mlp.{_CORRECTION}",
            later=f"model.layers.{{layer}}.mlp.gate.{_CORRECTION}",
            shape=(ONE, EXPERTS),
        ),
        *shared_expert("shared_experts"),
        *output(),
    ),
)
