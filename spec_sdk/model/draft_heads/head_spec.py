"""What a head is made of, read off its files in one vocabulary, whichever way a layout spells it.

Tensor names are those of the EAGLE-3 repository with ``layers.0`` for its ``midlayer``.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.decoder import BlockWeights
from spec_sdk.model.draft_heads.draft_vocabulary import draft_tokens
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts
from spec_sdk.model.draft_heads.head_files import HeadTensors
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.llama_like import EXPERT_COUNTS, read_llama_like
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.feed_forward import GatedMLP
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import GROUP
from spec_sdk.ops.quantizing import quantize
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead

LAYER = "layers.0"
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

    def block(self, weights: HeadWeights) -> BlockWeights:
        """The decoder layer. By default Llama's, whose input norm is ``hidden_norm``, if there is any."""
        return weights.block(weights.read_if_any(f"{LAYER}.hidden_norm.weight"))

    @abstractmethod
    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        """The head. ``parts`` are what all heads have."""

    def within(self, context: int) -> DraftHeadSpec:
        """The head for texts of at most so many tokens."""
        return replace(self, config=self.config.within(context))

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


class HeadWeights:
    """A head's tensors on a device, as a backend's linear layers and gains. ``bits``: of the matrices of linear layers
    whose inputs are whole groups of 32: 8, 4, or None for ``dtype``.
    """

    def __init__(
        self, tensors: HeadTensors, device: torch.device, dtype: torch.dtype, ops: Ops, bits: int | None = None
    ) -> None:
        self.tensors = tensors
        self.device, self.dtype = device, dtype
        self.ops, self.bits = ops, bits

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises KeyError if it is not there."""
        return self.tensors.tensor(name).to(device=self.device, dtype=self.dtype)

    def read_if_any(self, name: str) -> torch.Tensor | None:
        return self.read(name) if name in self.tensors else None

    def projection(self, *names: str) -> Projection:
        """The linear layers ``{name}.weight`` of one input, one below the other, with their biases if they have any."""
        weight_OI = torch.cat([self.read(f"{name}.weight") for name in names])
        biased = f"{names[0]}.bias" in self.tensors
        bias_O = torch.cat([self.read(f"{name}.bias") for name in names]) if biased else None
        return self.linear(weight_OI, bias_O)

    def linear(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        """A linear layer of this weight."""
        if self.bits is None or weight_OI.shape[1] % GROUP:
            return self.ops.projection(weight_OI.to(self.dtype), bias_O)
        return self.ops.quantized_projection(quantize(weight_OI, self.bits), bias_O)

    def block(self, input_norm_M: torch.Tensor | None) -> BlockWeights:
        """The decoder layer."""
        attention, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
        return BlockWeights(
            input_norm_M=input_norm_M,
            qkv=self.projection(*(f"{attention}.{part}_proj" for part in "qkv")),
            q_norm_D=self.read_if_any(f"{attention}.q_norm.weight"),
            k_norm_D=self.read_if_any(f"{attention}.k_norm.weight"),
            output=self.projection(f"{attention}.o_proj"),
            post_norm_M=self.read(f"{LAYER}.post_attention_layernorm.weight"),
            mlp=GatedMLP(self.projection(f"{mlp}.gate_proj", f"{mlp}.up_proj"), self.projection(f"{mlp}.down_proj")),
        )

    def embedding(self, target: TargetEnds) -> Embedding:
        """The head's own, or the target's where the head has none or the same."""
        own_VM = self.read_if_any("embed_tokens.weight")
        if own_VM is None or (type(target.embedding) is Embedding and torch.equal(own_VM, target.embedding.weight_VM)):
            return target.embedding
        return Embedding(own_VM)

    def output_head(self, target: TargetEnds) -> Projection:
        """The head's own, over the tokens that ``d2t`` names if it does, or the target's."""
        own = self.projection("lm_head") if "lm_head.weight" in self.tensors else None
        d2t_W, t2d_V = self.tensors.tensor_if_any("d2t"), self.tensors.tensor_if_any("t2d")
        if d2t_W is None:
            return own or target.output_head
        token_W = draft_tokens(d2t_W, t2d_V, target.vocabulary, self.tensors.where).to(self.device)
        if own is None:
            rows_WM = target.output_head.weight_OI.to(self.device)[token_W]
            own = self.linear(rows_WM)
        return ReducedVocabularyHead(own, token_W, target.vocabulary)
