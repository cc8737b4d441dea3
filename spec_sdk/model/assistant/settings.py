"""What an assistant's config.json says: a small model of the target's family without K and V of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import gemma4
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields

KINDS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Its values of ``model_type``."""
_OTHERS = -1
"""A layer of the target, in the place of one of its own, whose K and V a layer attends to."""


@dataclass(frozen=True)
class Clusters:
    """The vocabulary in ``count`` clusters of as many tokens, of which logits are computed of the ``chosen`` best."""

    count: int
    chosen: int


@dataclass(frozen=True)
class AssistantSettings:
    """``config``: of its own layers; ``target_width``: the model dim of its target; ``clusters``: None where logits of
    all tokens are computed.
    """

    config: ModelConfig
    target_width: int
    clusters: Clusters | None


def read_settings(fields: Fields) -> AssistantSettings:
    """Raises UserError for what is no assistant, is not computed, or is impossible."""
    kind = fields.text("model_type", "")
    if kind not in KINDS:
        raise UserError(f"{fields.where}: model_type is '{kind}', and an assistant's is {' or '.join(KINDS)}")
    text = fields.section("text_config")
    if text.flag("enable_moe_block", False) or text.count("hidden_size_per_layer_input", 0):
        raise UserError(f"{text.where}: has experts or inputs of layers, which no assistant has")
    own = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "tie_word_embeddings": True}
    config = gemma4.read_text(Fields({"model_type": "gemma4_text", **text.values, **own}, text.where))
    config = replace(config, kv_sources=(_OTHERS,) * config.num_layers, architecture="gemma4_text")
    clusters = None
    if fields.flag("use_ordered_embeddings", False):
        clusters = Clusters(fields.size("num_centroids", 2048), fields.size("centroid_intermediate_top_k", 32))
        if config.vocab_size % clusters.count or clusters.chosen > clusters.count:
            raise UserError(
                f"{fields.where}: {clusters.chosen} of {clusters.count} clusters (centroid_intermediate_top_k, "
                f"num_centroids) do not divide {config.vocab_size} tokens"
            )
    return AssistantSettings(config, fields.size("backbone_hidden_size"), clusters)
