"""A prediction module that was trained with its target: multi-token prediction (DeepSeek-V3, 2024, §2.2).

The token's embedding and the target's last hidden state, each under a norm of its own, are joined by a linear layer.
One decoder layer of the target's kind follows. Its final norm and the target's output head make the logits. A module
that was trained for one token more is applied to its own output for those behind it.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts, fed_features
from spec_sdk.model.gated_attention import GatedAttention
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class MtpVariant:
    """What families do differently.

    ``state_first``: the joining layer takes the state before the embedding. ``reads_normalized``: the state is the one
    after the target's final norm. ``feeds_normalized``: what the children are fed is under the module's final norm.
    ``first_embedding_is_zero``: that of the pair at position 0.
    """

    state_first: bool = False
    reads_normalized: bool = True
    feeds_normalized: bool = True
    first_embedding_is_zero: bool = False


class MtpHead(DraftHead):
    """``joining`` is 2M → M. ``token_norm_M`` and ``state_norm_M`` are the norms before it."""

    def __init__(
        self,
        parts: HeadParts,
        joining: Projection,
        token_norm_M: torch.Tensor,
        state_norm_M: torch.Tensor,
        final_norm_M: torch.Tensor,
        target: TargetEnds,
        variant: MtpVariant,
    ) -> None:
        super().__init__(parts, final_norm_M)
        self.joining = joining
        self.variant = variant
        self._token_norm_M, self._state_norm_M = token_norm_M, state_norm_M
        self._target = target

    @property
    def projections(self) -> list[Projection]:
        return [self.joining, *super().projections]

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        (last_NM,) = self.tapped(hidden)
        return self._target.final_norm(last_NM) if self.variant.reads_normalized else last_NM

    def recurrent(self, h: torch.Tensor) -> torch.Tensor:
        return self._norm(h, self.final_norm_M) if self.variant.feeds_normalized else h

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """What enters the layer [B, N, M], and what the pass works on."""
        embedded_BNM, work = super().forward_pass(inputs, cache, ops, taps)
        if self.variant.first_embedding_is_zero:
            embedded_BNM = embedded_BNM * (inputs.position_BN != 0)[..., None]
        embedded_BNM = self._norm(embedded_BNM, self._token_norm_M)
        state_BNM = self._norm(fed_features(inputs), self._state_norm_M)
        pair = (state_BNM, embedded_BNM) if self.variant.state_first else (embedded_BNM, state_BNM)
        return self.joining(torch.cat(pair, dim=-1)), work


class LatentMtpHead(MtpHead, LatentDecoder):
    """A module whose layer attends to latents."""


class GatedMtpHead(MtpHead, GatedAttention):
    """A module whose layer has attention with an output gate."""
