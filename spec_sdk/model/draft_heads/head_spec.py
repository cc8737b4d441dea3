"""What a head is made of, read off its files in one vocabulary, whichever way a layout spells it.

Tensor names are those of the EAGLE-3 repository with ``layers.0`` for its ``midlayer``.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.draft_heads.head import DraftHead, DraftHeadExecutor, HeadParts, head_executor
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_weights import LAYER, HeadWeights
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.llama_like import EXPERT_COUNTS, read_llama_like
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape

IGNORED = ("t2d", f"{LAYER}.self_attn.rotary_emb.inv_freq")
"""Tensors of training, or that follow from config.json."""
_POSITIONS = 2048
"""``max_position_embeddings`` where a head's config.json has none."""


@dataclass(frozen=True)
class DraftHeadSpec(PublishedSpec):
    """A head of one decoder layer. ``config`` is that of the layer; ``config.vocab_size`` is the target's.

    ``draft_vocabulary``: output rows W.
    """

    config: ModelConfig
    draft_vocabulary: int
    target_hidden_size: int

    @property
    def target_vocabulary(self) -> int:
        return self.config.vocab_size

    @abstractmethod
    def with_taps(self, taps: tuple[int, ...]) -> DraftHeadSpec:
        """The same reading other layers. Raises UserError if that is not a choice."""

    def blocks(self, weights: HeadWeights) -> tuple[BlockWeights, ...]:
        """The decoder layer. By default Llama's, whose input norm is ``hidden_norm``, if there is any."""
        return (weights.block(weights.read_if_any(f"{LAYER}.hidden_norm.weight")),)

    @abstractmethod
    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        """The head. ``parts`` are what all heads have."""

    def as_chosen(self, choices: HeadChoices) -> DraftHeadSpec:
        spec = self if choices.target_layers is None else self.with_taps(choices.target_layers)
        return spec if choices.context is None else replace(spec, config=spec.config.within(choices.context))

    def load(self, weights: HeadWeights, taps: tuple[int, ...], target: TargetEnds) -> DraftHeadExecutor:
        parts = HeadParts(
            self.config, self.blocks(weights), weights.embedding(target), weights.output_head(target), taps
        )
        return head_executor(self.build(weights, parts, target), weights.ops)

    @property
    def ignored(self) -> Collection[str]:
        return IGNORED


def read_layer(body: Fields, tensors: Collection[str]) -> ModelConfig:
    """The configuration of a head's decoder layer, from the config.json of a Llama-like model.

    ``tensors``: the names of those that it has. What other models have beside it (experts, scaled logits) may stand
    there and is not the head's. Raises UserError for several layers: the programs that read such heads differ in their
    norms.
    """
    layers = body.size("num_hidden_layers", 1)
    if layers != 1:
        raise UserError(f"{body.where}: num_hidden_layers is {layers}; only heads of one layer are read")
    return read_layers(Fields({**body.values, "num_hidden_layers": 1}, body.where), tensors)


def read_layers(
    body: Fields, tensors: Collection[str], windows: Sequence[int | None] = (), computes: Collection[str] = ()
) -> ModelConfig:
    """The configuration of decoder layers. ``tensors``: names of a head's; ``windows``: the sliding window of each.

    ``computes``: keys that the head reads itself. Which biases and norms there are, the tensors of the first layer say.
    """
    values = {"max_position_embeddings": _POSITIONS, **body.values}
    attention = f"{LAYER}.self_attn"
    if body.flag("attention_bias", False) and f"{attention}.q_proj.bias" not in tensors:
        raise UserError(f"{body.where}: attention_bias is true, and there is no tensor '{attention}.q_proj.bias'")
    return read_llama_like(
        Fields(values, body.where),
        qkv_bias=f"{attention}.q_proj.bias" in tensors,
        o_bias=f"{attention}.o_proj.bias" in tensors,
        qk_norm=f"{attention}.q_norm.weight" in tensors,
        windows=windows,
        computes=("logit_scale", *EXPERT_COUNTS, *computes),
    )


def layer_shapes(config: ModelConfig, inputs: int, layer: str = LAYER) -> dict[str, Shape]:
    """The matrices of a head's layer, whose Q, K and V read ``inputs`` numbers, with its norm before the MLP."""
    M, MLP = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    shapes: dict[str, Shape] = {
        f"{attention}.q_proj.weight": (queries, inputs),
        f"{attention}.k_proj.weight": (keys, inputs),
        f"{attention}.v_proj.weight": (keys, inputs),
        f"{attention}.o_proj.weight": (M, queries),
        f"{mlp}.gate_proj.weight": (MLP, M),
        f"{mlp}.up_proj.weight": (MLP, M),
        f"{mlp}.down_proj.weight": (M, MLP),
        f"{layer}.post_attention_layernorm.weight": (M,),
    }
    if config.qkv_bias:
        shapes |= {
            f"{attention}.{part}_proj.bias": (rows,) for part, rows in (("q", queries), ("k", keys), ("v", keys))
        }
    if config.o_bias:
        shapes[f"{attention}.o_proj.bias"] = (M,)
    if config.qk_norm:
        shapes |= {f"{attention}.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    return shapes
