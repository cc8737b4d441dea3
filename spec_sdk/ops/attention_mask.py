"""Who sees whom in one forward pass, in O(N) integers.

A pass has N queries over P committed keys, which all of them see, and T keys after those: the slots of a token tree (or
of a causal chain, which is a tree without branches). Slot ``s`` is visible to a query with pre-order number ``x`` iff
``key_start_T[s] <= x < key_end_T[s]`` (FlashSpecInfer's interval mask). For a closed tree the start is the slot index.

Legend: N queries, P prefix length, T tree slots, S = P + T keys; Q = R*N queries of R heads that share a KV head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class AttentionMask:
    """Visibility of ``prefix`` committed keys and T tree slots for N queries; int32 tensors on the pass's device.

    ``is_preorder``: slots lie in pre-order and every one is a query, so that starts are indices and the N ends are the
    whole mask. ``is_chain``: moreover, there are no branches. ``live``: queries that are no padding; None: all are.
    """

    prefix: int
    key_start_T: torch.Tensor
    key_end_T: torch.Tensor
    query_start_N: torch.Tensor
    is_preorder: bool = False
    is_chain: bool = False
    live: int | None = None
    _bias: dict[tuple[torch.dtype, int], torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def chain(prefix: int, length: int, device: torch.device) -> AttentionMask:
        """Causal mask of ``length`` new tokens after ``prefix`` committed ones."""
        start = torch.arange(length, dtype=torch.int32, device=device)
        return AttentionMask(prefix, start, torch.full_like(start, length), start, is_preorder=True, is_chain=True)

    @staticmethod
    def tree(prefix: int, end_N: Sequence[int], device: torch.device) -> AttentionMask:
        """Mask of a closed tree in pre-order, whose nodes are all queries; outside the root's interval is padding."""
        start = torch.arange(len(end_N), dtype=torch.int32, device=device)
        end = torch.tensor(end_N, dtype=torch.int32, device=device)
        return AttentionMask(prefix, start, end, start, is_preorder=True, live=end_N[0])

    @staticmethod
    def growing_tree(
        prefix: int, start: Sequence[int], end: Sequence[int], queries: int, device: torch.device
    ) -> AttentionMask:
        """Mask of a tree whose slots lie in creation order; the last ``queries`` slots are the queries."""
        key_start = torch.tensor(start, dtype=torch.int32, device=device)
        key_end = torch.tensor(end, dtype=torch.int32, device=device)
        return AttentionMask(prefix, key_start, key_end, key_start[-queries:])

    @property
    def queries(self) -> int:
        """Number of queries N."""
        return self.query_start_N.shape[0]

    @property
    def keys(self) -> int:
        """Number of keys, prefix and tree slots: P + T."""
        return self.prefix + self.key_start_T.shape[0]

    @property
    def sees_everything(self) -> bool:
        """True when nothing is masked: one query that is also the only tree slot."""
        return self.queries == 1 and self.key_start_T.shape[0] == 1

    @property
    def live_queries(self) -> int:
        """The first so many queries are nodes of the tree; those after them are padding."""
        return self.queries if self.live is None else self.live

    def of_queries(self, block: slice) -> AttentionMask:
        """The mask of some of the queries, over the same keys."""
        return AttentionMask(self.prefix, self.key_start_T, self.key_end_T, self.query_start_N[block])

    def visible_NT(self) -> torch.Tensor:
        """Dense visibility [N, T] of the tree slots, as the reference ops use it."""
        query_N1 = self.query_start_N[:, None]
        return (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)

    def bias_NT(self, dtype: torch.dtype) -> torch.Tensor:
        """Additive form [N, T] of :meth:`visible_NT`: 0 where visible, else -inf. A view of :meth:`bias_QS`."""
        return self.bias_QS(dtype, 1)[:, self.prefix :]

    def bias_QS(self, dtype: torch.dtype, heads: int) -> torch.Tensor:
        """Additive mask [R*N, P + T] for ``heads`` = R heads that share a KV head, prefix included.

        Built once per pass, dtype and R: a pass asks for it in every layer.
        """
        bias_QS = self._bias.get((dtype, heads))
        if bias_QS is None:
            N = self.queries
            bias_QS = torch.zeros((heads * N, self.keys), dtype=dtype, device=self.key_start_T.device)
            hidden_NT = self.visible_NT().logical_not_()
            bias_QS.view(heads, N, self.keys)[:, :, self.prefix :].masked_fill_(hidden_NT, float("-inf"))
            self._bias[dtype, heads] = bias_QS
        return bias_QS
