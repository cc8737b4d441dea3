"""The contract of an attention predictor, and what one speculative attention call yields.

Legend: B batch, N tree nodes, H query heads, G KV heads, D head dim, S cache slots, C chunks of keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec_sdk.contracts.plugin import Plugin

if TYPE_CHECKING:
    from spec_sdk.model.attention_mask import AttentionMask
    from spec_sdk.ops import Ops


@dataclass(frozen=True)
class PartialAttention:
    """Attention over part of the keys, with the softmax statistics that let it be combined with the rest.

    ``o_BNHD`` normalised output over the keys seen, ``m_BNH`` their largest score, ``l_BNH`` sum of exp(score - m).
    """

    o_BNHD: torch.Tensor
    m_BNH: torch.Tensor
    l_BNH: torch.Tensor


@dataclass(frozen=True)
class SpeculativeAttention:
    """What one speculative attention call yields: the prediction, the exact attention, and how far they are apart.

    ``predicted_BNHD``, ``exact_BNHD``: normalised attention, in the dtype of the queries.
    ``difference_sq_BN``, ``norm_sq_BN``: ‖Â − A‖² and ‖A‖² in float32, over the H heads of a query together.
    ``chunk_lse_BNHC``: for predictors that learn, the log-sum-exp of the scaled scores over each chunk of *committed*
    keys (:attr:`Predictor.chunk` keys each, the last one maybe fewer); tree slots belong to none.
    """

    predicted_BNHD: torch.Tensor
    exact_BNHD: torch.Tensor
    difference_sq_BN: torch.Tensor
    norm_sq_BN: torch.Tensor
    chunk_lse_BNHC: torch.Tensor | None = None

    @staticmethod
    def measured(
        predicted_BNHD: torch.Tensor,
        exact_BNHD: torch.Tensor,
        dtype: torch.dtype,
        chunk_lse_BNHC: torch.Tensor | None = None,
    ) -> SpeculativeAttention:
        """Both attentions as ``dtype``, with the two squared norms taken in float32 before they are rounded to it."""
        exact = exact_BNHD.float()
        return SpeculativeAttention(
            predicted_BNHD=predicted_BNHD.to(dtype),
            exact_BNHD=exact_BNHD.to(dtype),
            difference_sq_BN=(predicted_BNHD.float() - exact).square().sum((-1, -2)),
            norm_sq_BN=exact.square().sum((-1, -2)),
            chunk_lse_BNHC=chunk_lse_BNHC,
        )


Announce = Callable[[torch.Tensor], None]
"""Called once, with a prediction [B, N, H, D], as soon as there is one: another device may go on with it already."""


class Predictor(Plugin, ABC):
    """Predicts attention from few KV entries (the attention level's guess). One instance per request.

    What it keeps between passes follows the cache: :meth:`commit` tells which rows of a pass stayed, :meth:`truncate`
    tells of every roll back (of prefill, the next mask's prefix does). One that keeps nothing need only say ``predict``
    and ``always_exact``.

    ``chunk``: keys per chunk of the statistics that :meth:`learn` gets back from the exact pass; 0: it learns nothing.
    """

    kind = "predictor"
    chunk: int = 0

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def always_exact(self, prefix: int) -> bool:
        """True if at this prefix length the prediction covers every key: no guess, and left out of the hit rate."""

    @abstractmethod
    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        """Attention of the N queries over the keys this predictor selects."""

    def speculate(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        """The prediction and the exact attention of one layer; called only where ``always_exact`` is False.

        ``announce`` gets the very prediction that is returned, before the exact attention is computed if that can be.
        This one computes the exact attention anew. A predictor whose keys a kernel can read first, and reuse, overrides
        it: no key is then read twice.
        """
        prediction = self.predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
        if announce is not None:
            announce(prediction.o_BNHD.to(q_BNHD.dtype))
        exact_BNHD = ops.tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)
        chunk_lse_BNHC = ops.chunk_lse(q_BNHD, k_BGSD[:, :, : mask.prefix], self.chunk) if self.chunk else None
        return SpeculativeAttention.measured(prediction.o_BNHD, exact_BNHD, q_BNHD.dtype, chunk_lse_BNHC)

    def learn(self, layer: int, chunk_lse_BNHC: torch.Tensor) -> None:
        """The statistics of the exact pass that was just made (see :class:`SpeculativeAttention`).

        Its rows are the nodes of a tree, most of which may be dropped: what counts is known at :meth:`commit`.
        """

    def commit(self, path: Sequence[int]) -> None:
        """These rows of the last pass were accepted, in this order: their keys now end the prefix."""

    def truncate(self, length: int) -> None:
        """Only the first ``length`` committed keys are left; 0 forgets everything."""
