"""Hydra heads as files say them. Tensor names are those of vLLM's Medusa, and of an EAGLE head for the prefix layer.

Legend: V target vocabulary, M model dim of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.draft_heads.head import HeadParts, head_executor
from spec_sdk.model.draft_heads.head_spec import layer_shapes
from spec_sdk.model.draft_heads.head_weights import LAYER, HeadWeights
from spec_sdk.model.draft_heads.hydra import HydraHead, HydraHeads, HydraPrefix, TargetState
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape

PREFIX_TOKENS = "prefix.embed_tokens.weight"
"""The embedding of the class that the prefix layer is one of. It is fed states, and looks nothing up."""
_IGNORED = (PREFIX_TOKENS, f"{LAYER}.self_attn.rotary_emb.inv_freq")


@dataclass(frozen=True)
class HydraSpec(PublishedSpec):
    """``heads`` of ``layers`` blocks each. ``offset``: how far above the read layer the last one is.

    ``has_prefix``: the layer of Hydra++ is there. Its sizes are those of the target, which files do not say:
    ``prefix``, once the target is known.
    """

    method: ClassVar[str] = "hydra"
    heads: int
    layers: int
    target_hidden_size: int
    vocabulary: int
    offset: int = 0
    has_prefix: bool = False
    prefix: ModelConfig | None = None

    @property
    def target_vocabulary(self) -> int:
        return self.vocabulary

    @property
    def ignored(self) -> Collection[str]:
        return _IGNORED if self.has_prefix else ()

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return (target_layers - self.offset,)

    def beside(self, target: TargetEnds, where: str) -> HydraSpec:
        """The spec with the sizes of the prefix layer, if it has one. Raises UserError for a target that is no Llama:
        the layer is Llama's, whatever the target.
        """
        if not self.has_prefix:
            return self
        config = target.config
        if config.architecture != "llama":
            raise UserError(
                f"{where}: the prefix layer of these Hydra heads is a Llama layer of the target's sizes, and "
                f"{target.name} is a {config.architecture}"
            )
        return replace(self, prefix=replace(config, num_layers=1, qkv_bias=False, o_bias=False, mlp_bias=False))

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V = self.target_hidden_size, self.vocabulary
        required: dict[str, Shape] = {}
        optional: dict[str, Shape] = {"embed_tokens.weight": (V, M)}
        for i in range(self.heads):
            for j in range(self.layers):
                inputs = M if j else (i + 2) * M
                for name in (f"blocks.{i}.layers.{j}", *([] if j else [f"blocks.{i}.shortcut"])):
                    required |= {f"{name}.weight": (M, inputs), f"{name}.bias": (M,)}
            required[f"lm_heads.{i}.weight"] = (V, M)
            optional[f"lm_heads.{i}.bias"] = (V,)
        if self.prefix is not None:
            norms = {f"{LAYER}.input_layernorm.weight": (M,), "norm.weight": (M,)}
            required |= {**layer_shapes(self.prefix, M), **norms}
        return required, optional

    def load(self, weights: HeadWeights, taps: tuple[int, ...], target: TargetEnds) -> HydraHeads:
        state = TargetState(taps[0], target, weights.dtype)
        heads = [
            HydraHead(
                weights.projection(f"blocks.{i}.layers.0"),
                weights.projection(f"blocks.{i}.shortcut"),
                [weights.projection(f"blocks.{i}.layers.{j}") for j in range(1, self.layers)],
                weights.projection(f"lm_heads.{i}"),
            )
            for i in range(self.heads)
        ]
        embedding, prefix = weights.embedding(target), None
        if self.prefix is not None:
            block = weights.block(weights.read(f"{LAYER}.input_layernorm.weight"))
            parts = HeadParts(self.prefix, (block,), embedding, target.output_head, taps)
            prefix = head_executor(HydraPrefix(parts, weights.read("norm.weight"), state), weights.ops)
        return HydraHeads(heads, embedding, state, prefix, target.config.max_context)
