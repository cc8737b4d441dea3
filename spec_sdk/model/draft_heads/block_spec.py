"""Heads that draft a block, as files say them. Tensor names are those of z-lab's and DeepSpec's repositories.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head, S model dim of the target, R rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.draft_heads.block_head import (
    BlockExecutor,
    BlockForm,
    BlockHead,
    BlockHeadParts,
    ContextProjection,
)
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_spec import layer_shapes
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.draft_heads.markov import (
    ConfidenceHead,
    GatedMarkovHead,
    MarkovHead,
    RecurrentMarkovHead,
    VanillaMarkovHead,
)
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.draft_heads.tapped_layers import PublishedTaps
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead

MarkovKind = Literal["vanilla", "gated", "rnn"]
MASK_EMBEDDING = "mask_embedding"


@dataclass(frozen=True)
class BlockSpec(PublishedSpec):
    """``config``: of the layers; ``config.vocab_size`` is the target's. ``draft_vocabulary``: output rows W.

    ``target_layers``: how many layers the target has that it was trained for, if the files say it.
    """

    method: ClassVar[str] = "dflash"
    config: ModelConfig
    form: BlockForm
    draft_vocabulary: int
    target_hidden_size: int
    published_taps: PublishedTaps
    target_layers: int | None = None
    logit_scale: float = 1.0

    @property
    def target_vocabulary(self) -> int:
        return self.config.vocab_size

    @property
    def ignored(self) -> Collection[str]:
        return ("t2d",)

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return self.published_taps.of_target(target_layers)

    def as_chosen(self, choices: HeadChoices) -> BlockSpec:
        taps = self.published_taps if choices.target_layers is None else PublishedTaps(choices.target_layers)
        config = self.config if choices.context is None else self.config.within(choices.context)
        return replace(self, published_taps=taps, config=config)

    def fitting_taps(self, target: TargetEnds, where: str) -> tuple[int, ...]:
        if self.target_layers not in (None, target.layers):
            raise UserError(
                f"{where}: the head is made for a target of {self.target_layers} layers, and {target.name} has "
                f"{target.layers}"
            )
        return super().fitting_taps(target, where)

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V, W, S = self.config.hidden_size, self.config.vocab_size, self.draft_vocabulary, self.target_hidden_size
        required: dict[str, Shape] = {"fc.weight": (M, taps * S), "hidden_norm.weight": (M,), "norm.weight": (M,)}
        for i in range(self.config.num_layers):
            required |= {f"layers.{i}.input_layernorm.weight": (M,), **layer_shapes(self.config, M, f"layers.{i}")}
        optional: dict[str, Shape] = {
            "d2t": (W,),
            "lm_head.weight": (W, M),
            "embed_tokens.weight": (V, M),
            MASK_EMBEDDING: (M,),
        }
        # what the target cannot lend
        needed = [("d2t", V != W), ("lm_head.weight", V != W or M != S), ("embed_tokens.weight", M != S)]
        required |= {name: optional.pop(name) for name, wanted in needed if wanted}
        return required, optional

    def load(self, weights: HeadWeights, taps: tuple[int, ...], target: TargetEnds) -> BlockExecutor:
        output_head = weights.output_head(target)
        layers = [f"layers.{i}" for i in range(self.config.num_layers)]
        qkv = [_qkv(weights, layer) for layer in layers]
        parts = BlockHeadParts(
            config=self.config,
            form=self.form,
            qkv=qkv,
            blocks=[
                weights.block(weights.read(f"{layer}.input_layernorm.weight"), layer, own)
                for layer, own in zip(layers, qkv, strict=True)
            ],
            embedding=weights.embedding(target),
            final_norm_M=weights.read("norm.weight"),
            output_head=output_head,
            fc=weights.projection("fc"),
            context_norm_M=weights.read("hidden_norm.weight"),
            taps=taps,
            mask_embedding_M=weights.read_if_any(MASK_EMBEDDING),
            logit_scale=self.logit_scale,
            markov=self.markov_head(weights, output_head),
            confidence=self.confidence_head(weights),
        )
        return BlockExecutor(BlockHead(parts), weights.ops)

    def markov_head(self, weights: HeadWeights, output_head: Projection) -> MarkovHead | None:
        """What makes a slot's logits depend on the token before it. ``output_head``: whose tokens it has rows for."""
        return None

    def confidence_head(self, weights: HeadWeights) -> ConfidenceHead | None:
        """What says how sure a slot's draft is."""
        return None


@dataclass(frozen=True)
class DSparkSpec(BlockSpec):
    """``markov_rank``: 0 where there is no Markov head. ``confidence``: whether there is a confidence head, and whether
    it reads the token before a slot (``confidence_reads_token``).
    """

    method: ClassVar[str] = "dspark"
    markov_rank: int = 0
    markov_kind: MarkovKind = "vanilla"
    confidence: bool = False
    confidence_reads_token: bool = False

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        required, optional = super().shapes(taps)
        required = dict(required)
        M, V, W, R = self.config.hidden_size, self.config.vocab_size, self.draft_vocabulary, self.markov_rank
        if R:
            required |= {"markov_head.markov_w1.weight": (V, R), "markov_head.markov_w2.weight": (W, R)}
            part, rows, columns = {
                "vanilla": ("", 0, 0),
                "gated": ("gate_proj", R, M + R),
                "rnn": ("joint_proj", 3 * R, 2 * R + M),
            }[self.markov_kind]
            if part:
                required |= {f"markov_head.{part}.weight": (rows, columns), f"markov_head.{part}.bias": (rows,)}
        if self.confidence:
            width = M + R if self.confidence_reads_token else M
            required |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
        return required, optional

    def markov_head(self, weights: HeadWeights, output_head: Projection) -> MarkovHead | None:
        if not self.markov_rank:
            return None
        embedding = Embedding(weights.read("markov_head.markov_w1.weight"))
        readout = weights.projection("markov_head.markov_w2")
        if isinstance(output_head, ReducedVocabularyHead):
            readout = ReducedVocabularyHead(readout, output_head.token_R, output_head.outputs)
        if self.markov_kind == "gated":
            return GatedMarkovHead(embedding, readout, weights.projection("markov_head.gate_proj"))
        if self.markov_kind == "rnn":
            return RecurrentMarkovHead(embedding, readout, weights.projection("markov_head.joint_proj"))
        return VanillaMarkovHead(embedding, readout)

    def confidence_head(self, weights: HeadWeights) -> ConfidenceHead | None:
        if not self.confidence:
            return None
        return ConfidenceHead(weights.projection("confidence_head.proj"), self.confidence_reads_token)


def _qkv(weights: HeadWeights, layer: str) -> ContextProjection:
    attention = f"{layer}.self_attn"
    return ContextProjection(
        weights.projection(f"{attention}.q_proj"), weights.projection(f"{attention}.k_proj", f"{attention}.v_proj")
    )
