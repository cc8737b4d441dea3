"""Medusa heads as files say them. Tensor names are those of vLLM's conversion.

Legend: V target vocabulary, W draft vocabulary, M model dim of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from spec_sdk.model.draft_heads.draft_vocabulary import checked_tokens
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.draft_heads.medusa import MedusaHead, MedusaHeads
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead

TOKEN_MAP = "token_map"
SHARED_HEAD = "lm_head"


@dataclass(frozen=True)
class MedusaSpec(PublishedSpec):
    """``heads`` of ``layers`` residual blocks each, whose linear layers have a bias or not.

    ``shared_head``: one output head for all of them, ``lm_head`` of the file or else the target's. ``rows``: of each
    output head; fewer than the target's vocabulary where ``token_map`` names their tokens.
    """

    method: ClassVar[str] = "medusa"
    heads: int
    layers: int
    bias: bool
    target_hidden_size: int
    vocabulary: int
    rows: int
    shared_head: bool = False
    logit_scale: float = 1.0

    @property
    def target_vocabulary(self) -> int:
        return self.vocabulary

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return (target_layers,)

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V, W = self.target_hidden_size, self.vocabulary, self.rows
        required: dict[str, Shape] = {}
        for i in range(self.heads):
            for j in range(self.layers):
                required[f"blocks.{i}.layers.{j}.weight"] = (M, M)
                if self.bias:
                    required[f"blocks.{i}.layers.{j}.bias"] = (M,)
            if not self.shared_head:
                required[f"lm_heads.{i}.weight"] = (W, M)
        optional: dict[str, Shape] = {}
        if W < V:
            required[TOKEN_MAP] = (W,)
        if self.shared_head:
            # the target's own has a row for every token
            (required if W < V else optional)[f"{SHARED_HEAD}.weight"] = (W, M)
        return required, optional

    def load(self, weights: HeadWeights, taps: tuple[int, ...], target: TargetEnds) -> MedusaHeads:
        """The heads on the device of ``weights``. Raises UserError for a token map that leads out of the vocabulary."""
        shared = self._shared_head(weights, target) if self.shared_head else None
        heads = [
            MedusaHead(
                [weights.projection(f"blocks.{i}.layers.{j}") for j in range(self.layers)],
                shared or self._over_vocabulary(weights.projection(f"lm_heads.{i}"), weights),
            )
            for i in range(self.heads)
        ]
        return MedusaHeads(heads, taps, target, self.logit_scale, weights.dtype)

    def _shared_head(self, weights: HeadWeights, target: TargetEnds) -> Projection:
        if f"{SHARED_HEAD}.weight" not in weights.tensors:
            return target.output_head
        return self._over_vocabulary(weights.projection(SHARED_HEAD), weights)

    def _over_vocabulary(self, head: Projection, weights: HeadWeights) -> Projection:
        if self.rows == self.vocabulary:
            return head
        token_W = weights.tensors.tensor(TOKEN_MAP).long().cpu()
        checked_tokens(token_W, self.vocabulary, weights.tensors.where, TOKEN_MAP)
        return ReducedVocabularyHead(head, token_W.to(weights.device), self.vocabulary)
