"""From a checkpoint's weights, by their roles, to blocks of a model whose layers have heads of different shapes.

Legend: M model dim, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.varied_decoder import LayerInputEmbedding
from spec_sdk.model.varied_parts import ExpertsBesideMLP, LayerInput, VariedParts
from spec_sdk.model.weights_by_role import WeightsByRole
from spec_sdk.ops.feed_forward import MLP, MixtureOfExperts

GLOBAL, WIDE = "global_", "wide_"
"""What roles of layers without a window, and of MLPs of twice the width, begin with."""


def varied_block(
    config: ModelConfig, weights: WeightsByRole, layer: int, mlp: MLP, mixture: MixtureOfExperts | None
) -> BlockWeights:
    """A block of these MLP and experts."""
    which = GLOBAL if config.is_global(layer) else ""
    entering = ["q"]
    if config.kv_layer(layer) == layer:
        entering += ["k"] if config.values_are_keys(layer) else ["k", "v"]
    _, head_dim = config.heads_of(layer)
    input_norm_M = weights.read("input_norm", layer)
    return BlockWeights(
        input_norm_M=input_norm_M,
        qkv=weights.biased_projection(layer, *(f"{which}{role}" for role in entering)),
        q_norm_D=weights.read(f"{which}q_norm", layer),
        k_norm_D=weights.read_if_any(f"{which}k_norm", layer),
        output=weights.biased_projection(layer, f"{which}o"),
        post_norm_M=weights.read("post_norm", layer),
        mlp=mlp,
        attention_output_norm_M=weights.read("attention_output_norm", layer),
        mlp_output_norm_M=weights.read("mlp_output_norm", layer),
        of_varied=VariedParts(
            input_norm_M.new_ones(head_dim),
            float(weights.read("layer_scale", layer)) if weights.has("layer_scale", layer) else 1.0,
            None if mixture is None else _beside_mlp(config, weights, layer, mixture),
            None if config.layer_inputs is None else _layer_input(weights, layer),
        ),
    )


def layer_input_embedding(weights: WeightsByRole) -> LayerInputEmbedding:
    """What the inputs of all layers are made of."""
    return LayerInputEmbedding(
        weights.embedding("layer_embedding"),
        weights.projection(0, "layer_projection"),
        weights.read("layer_projection_norm"),
    )


def _beside_mlp(config: ModelConfig, weights: WeightsByRole, layer: int, mixture: MixtureOfExperts) -> ExpertsBesideMLP:
    wide = torch.promote_types(weights.dtype, torch.float32)
    return ExpertsBesideMLP(
        mixture,
        weights.read("router_scale", layer, wide) * config.hidden_size**-0.5,
        weights.read("experts_norm", layer),
        weights.read("experts_output_norm", layer),
        weights.read("mlp_part_norm", layer),
    )


def _layer_input(weights: WeightsByRole, layer: int) -> LayerInput:
    return LayerInput(
        weights.projection(layer, "layer_gate"),
        weights.projection(layer, "layer_out"),
        weights.read("layer_input_norm", layer),
    )
