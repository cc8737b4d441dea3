"""The head of EAGLE-3 (Li et al. 2025, §3), with the variants that trainers added since.

Hidden states of several target layers are joined and brought to the head's width by ``fc``. In its one decoder layer Q,
K and V read the token's embedding beside that feature, each under a norm of its own; the residual stream carries the
feature alone. What leaves the layer is the next feature; its own norm and output head make the logits.

Legend: B requests, N rows of a request, M model dim, S model dim of the target, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from spec_sdk.model.decoder import ForwardPass, Rotations
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts, HeadPass, HeadRows, fed_features
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class Eagle3Variant:
    """What heads of this family differ in, beside their sizes.

    ``norm_before_residual``: the residual stream carries the normalized feature. ``norm_output``: so is what the
    children are fed, by the norm before the output head.
    """

    norm_before_residual: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0


class Eagle3Head(DraftHead):
    """``fc`` takes the tapped states, one beside the other, to M. The block's input norm is that of the feature.

    ``fc_norms``: a gain [S] per tapped state, or one over all of them together, or none.
    """

    def __init__(
        self,
        parts: HeadParts,
        fc: Projection,
        fc_norms: tuple[torch.Tensor, ...],
        embedding_norm_M: torch.Tensor,
        final_norm_M: torch.Tensor,
        variant: Eagle3Variant,
    ) -> None:
        super().__init__(parts, final_norm_M)
        self.fc = fc
        self.variant = variant
        self._fc_norms = fc_norms
        self.embedding_norm_M = embedding_norm_M

    @property
    def projections(self) -> list[Projection]:
        return [self.fc, *super().projections]

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        states = self.tapped(hidden)
        if len(self._fc_norms) == 1:
            states = [torch.cat(states, dim=-1)]
        if self._fc_norms:
            states = [self._norm(state, gain) for state, gain in zip(states, self._fc_norms, strict=True)]
        return self.fc(torch.cat(states, dim=-1))

    def recurrent(self, h: torch.Tensor) -> torch.Tensor:
        return self._norm(h, self.final_norm_M) if self.variant.norm_output else h

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """What enters the layer [B, N, M], and what the pass works on."""
        embedded_BNM, work = super().forward_pass(inputs, cache, ops, taps)
        embedded_BNM = self.normed_embedding(embedded_BNM)
        return self.entering(fed_features(inputs)), HeadPass(**vars(work), embedded_BNM=embedded_BNM)

    def normed_embedding(self, embedded_BNM: torch.Tensor) -> torch.Tensor:
        """What the attention reads of a token."""
        return self._norm(embedded_BNM, self.embedding_norm_M)

    def entering(self, feature_BNM: torch.Tensor) -> torch.Tensor:
        """What enters the layer with a feature."""
        return self._feature_norm(feature_BNM) if self.variant.norm_before_residual else feature_BNM

    @property
    def attention_norm_M(self) -> torch.Tensor | None:
        return None if self.variant.norm_before_residual else super().attention_norm_M

    def attention_input(self, layer: int, h_BNM: torch.Tensor, work: Rotations) -> torch.Tensor:
        """Embedding and feature side by side [B, N, 2M]; of a further layer, what Llama's reads."""
        if layer:
            return super().attention_input(layer, h_BNM, work)
        assert isinstance(work, HeadPass | HeadRows)
        normed_BNM = h_BNM if self.variant.norm_before_residual else self._feature_norm(h_BNM)
        return torch.cat((work.embedded_BNM, normed_BNM), dim=-1)

    def logits_with(self, h_BNM: torch.Tensor, output_head: Projection) -> torch.Tensor:
        """A logit for each row of the output head."""
        return self.scaled(output_head(self.before_output(h_BNM)))

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """What the output head returned, as logits."""
        scale = self.variant.logit_scale
        return logits if scale == 1.0 else logits * scale

    def before_output(self, h: torch.Tensor) -> torch.Tensor:
        """What the output head reads of what left the layer [..., M]."""
        return self._norm(h, self.final_norm_M)

    def _feature_norm(self, h_BNM: torch.Tensor) -> torch.Tensor:
        return super().attention_input(0, h_BNM, Rotations(()))
