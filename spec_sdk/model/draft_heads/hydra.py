"""The heads of Hydra (Ankner et al. 2024): one per position ahead, each of which reads the tokens between as well.

Head i, counted from 0, predicts the token i + 1 behind the pending one. It reads a state of the target at the position
before the pending token, and after it the embeddings of the pending token and of the i tokens drafted behind it. In
Hydra++ a decoder layer of the heads' own makes that state of the target's states at all positions so far.

Legend: B requests, N states, K nodes of a level, P tokens of a path, M model dim of the target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.draft_heads.head import DraftHead, DraftHeadExecutor, HeadParts, fed_features
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.pass_inputs import PassInputs


@dataclass(frozen=True)
class HydraHead:
    """A first block that brings (1 + P) M numbers to M, R x + SiLU(W x + b), residual blocks x + SiLU(W x + b), and the
    output head, M → V. ``shortcut`` is R.
    """

    first: Projection
    shortcut: Projection
    blocks: Sequence[Projection]
    output_head: Projection

    def __call__(self, x_KX: torch.Tensor) -> torch.Tensor:
        """Logits [K, V]."""
        h_KM = self.shortcut(x_KX) + F.silu(self.first(x_KX))
        for block in self.blocks:
            h_KM = h_KM + F.silu(block(h_KM))
        return self.output_head(h_KM)


@dataclass(frozen=True)
class TargetState:
    """The state of the target that heads read: what leaves ``layer``, after the final norm if that is the last one."""

    layer: int
    target: TargetEnds
    dtype: torch.dtype

    def of(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """[N, M], from layer → states [N, M]."""
        h_NM = hidden[self.layer].to(device=self.target.final_norm_M.device, dtype=self.dtype)
        return self.target.final_norm(h_NM) if self.layer == self.target.layers else h_NM


class HydraPrefix(DraftHead):
    """The decoder layer of Hydra++ over the target's states, each at its own position. Tokens mean nothing to it."""

    def __init__(self, parts: HeadParts, final_norm_M: torch.Tensor, state: TargetState) -> None:
        super().__init__(parts, final_norm_M)
        self._state = state

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        return self._state.of(hidden)

    def recurrent(self, h: torch.Tensor) -> torch.Tensor:
        """What the heads read of what left the layer [..., M]: a state under the layer's own final norm."""
        return self._norm(h, self.final_norm_M)

    def forward_pass(
        self, inputs: PassInputs, cache: KVCache, ops: Ops, taps: Collection[int] = ()
    ) -> tuple[torch.Tensor, ForwardPass]:
        """What enters the layer [B, N, M], and what the pass works on."""
        _, work = super().forward_pass(inputs, cache, ops, taps)
        return fed_features(inputs), work


class HydraHeads:
    """Weights and arithmetic of all heads, and the ``prefix`` of Hydra++. They hold no state of a request.

    ``context``: the longest text that they can be used in.
    """

    def __init__(
        self,
        heads: Sequence[HydraHead],
        embedding: Embedding,
        state: TargetState,
        prefix: DraftHeadExecutor | None,
        context: int,
    ) -> None:
        self.heads, self.embedding, self.prefix, self.context = heads, embedding, prefix, context
        self.taps: tuple[int, ...] = (state.layer,)
        self._state = state

    @property
    def positions(self) -> int:
        """How many tokens ahead are predicted."""
        return len(self.heads)

    def keep_cache_in(self, form: str) -> None:
        """The prefix layer's; the heads have none."""
        if self.prefix is not None:
            self.prefix.keep_cache_in(form)

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The target's states [N, M] that heads or prefix read, from layer → states [N, M]."""
        return self._state.of(hidden)

    def logits(self, state_KM: torch.Tensor, path_KP: torch.Tensor) -> torch.Tensor:
        """The logits [K, V] after paths of P tokens each, the pending one first, beside the state before it.

        Raises ValueError for paths longer than there are heads.
        """
        P = path_KP.shape[1]
        if self.positions < P:
            raise ValueError(f"there are {self.positions} heads, and none for what follows {P} tokens")
        embedded_KX = self.embedding(path_KP).flatten(1).to(state_KM.dtype)
        return self.heads[P - 1](torch.cat((state_KM, embedded_KX), dim=-1))
