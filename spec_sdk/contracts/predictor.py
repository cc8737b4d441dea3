"""The contract of an attention predictor.

Legend: B batch, N tree nodes, H query heads, G KV heads, D head dim, S cache slots, C chunks of keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.errors import PluginFault
from spec_sdk.ops import AttentionMask, Ends, Ops
from spec_sdk.ops.types import Announce, PartialAttention, SpeculativeAttention
from spec_sdk.plugin import Plugin, not_inherited


class Predictor(Plugin, ABC):
    """Predicts attention from few KV entries (the attention level's guess). One instance per request.

    What it keeps between passes follows the cache: :meth:`commit` tells which rows of a pass stayed, :meth:`truncate`
    tells of every roll back (of prefill, the next mask's prefix does). One that keeps nothing need only say ``predict``
    and ``always_exact``.

    ``chunk``: keys per chunk of the statistics that :meth:`learn` gets back from the exact pass; 0: it learns nothing.
    """

    kind = "predictor"
    chunk: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        not_inherited(cls, "ends", Predictor.ends, ["predict", "speculate", "always_exact"])

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def ends(self) -> Ends | None:
        """The two ends of the prefix, where attention over these keys and a query's own tree ancestors is all that it
        predicts, and it keeps nothing: kernels may then predict in its place. None, the default: it does otherwise. A
        class that changes how it predicts does not inherit it.
        """
        return None

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

    def predicted(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        """:meth:`predict`, looked at. Raises PluginFault for what is no attention of these queries."""
        prediction: object = self.predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
        if not isinstance(prediction, PartialAttention):
            kind = "None" if prediction is None else f"a {type(prediction).__name__}"
            raise PluginFault(f"predictor {self.name!r}: its predict returned {kind}, not a PartialAttention")
        if prediction.o_BNHD.shape != q_BNHD.shape:
            found, wanted = list(prediction.o_BNHD.shape), list(q_BNHD.shape)
            raise PluginFault(f"predictor {self.name!r}: its prediction is of shape {found}, that of queries {wanted}")
        return prediction

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
        prediction = self.predicted(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
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
