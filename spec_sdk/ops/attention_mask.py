"""Who sees whom in one forward pass, in O(N) integers.

A pass has N queries over P committed keys, which all of them see, and T keys after those: the slots of a token tree (or
of a causal chain, which is a tree without branches). Slot ``s`` is visible to a query with pre-order number ``x`` iff
``key_start_T[s] <= x < key_end_T[s]`` (FlashSpecInfer's interval mask). For a closed tree the start is the slot index.

Layers with a sliding window hide further keys, by positions: those of committed keys are their numbers, those of tree
slots and queries come with the pass.

Legend: N queries, P prefix length, T tree slots, S = P + T keys; Q = R*N queries of R heads that share a KV head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class AttentionMask:
    """Visibility of ``prefix`` committed keys and T tree slots for N queries; int32 tensors on the pass's device.

    ``key_position_T`` and ``query_position_N`` are absolute; no query's lies before the last committed key's.
    ``is_preorder``: slots lie in pre-order and every one is a query, so that starts are indices and the N ends are the
    whole mask. ``is_chain``: moreover, there are no branches. ``live``: queries that are no padding; None: all are.
    ``window``: keys so many positions or more before a query are hidden from it; None: none are. ``first``: committed
    keys in front of the first one here; :meth:`within` leaves out those that a window hides from all queries.
    """

    prefix: int
    key_start_T: torch.Tensor
    key_end_T: torch.Tensor
    query_start_N: torch.Tensor
    key_position_T: torch.Tensor
    query_position_N: torch.Tensor
    is_preorder: bool = False
    is_chain: bool = False
    live: int | None = None
    window: int | None = None
    first: int = 0
    _windowed: dict[int, AttentionMask] = field(default_factory=dict, repr=False, compare=False)
    _bias: dict[tuple[torch.dtype, int], torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def chain(prefix: int, length: int, device: torch.device) -> AttentionMask:
        """Causal mask of ``length`` new tokens after ``prefix`` committed ones."""
        start = torch.arange(length, dtype=torch.int32, device=device)
        end, position = torch.full_like(start, length), prefix + start
        return AttentionMask(prefix, start, end, start, position, position, is_preorder=True, is_chain=True)

    @staticmethod
    def tree(prefix: int, end_N: Sequence[int], device: torch.device) -> AttentionMask:
        """Mask of a closed tree in pre-order, whose nodes are all queries; outside the root's interval is padding."""
        start = torch.arange(len(end_N), dtype=torch.int32, device=device)
        end = torch.tensor(end_N, dtype=torch.int32, device=device)
        position = prefix + _depth(start, end)
        return AttentionMask(prefix, start, end, start, position, position, is_preorder=True, live=end_N[0])

    @staticmethod
    def growing_tree(
        prefix: int, start: Sequence[int], end: Sequence[int], queries: int, device: torch.device
    ) -> AttentionMask:
        """Mask of a tree whose slots lie in creation order; the last ``queries`` slots are the queries."""
        key_start = torch.tensor(start, dtype=torch.int32, device=device)
        key_end = torch.tensor(end, dtype=torch.int32, device=device)
        position = prefix + _depth(key_start, key_end)
        return AttentionMask(prefix, key_start, key_end, key_start[-queries:], position, position[-queries:])

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
        return self.queries == 1 and self.key_start_T.shape[0] == 1 and self.window is None

    @property
    def is_causal(self) -> bool:
        """True for a chain of several tokens with nothing before it, such as a prompt's first chunk."""
        return self.is_chain and self.prefix == 0 and self.queries > 1 and self.window is None

    @property
    def live_queries(self) -> int:
        """The first so many queries are nodes of the tree; those after them are padding."""
        return self.queries if self.live is None else self.live

    def of_queries(self, block: slice) -> AttentionMask:
        """The mask of some of the queries, over the same keys."""
        return AttentionMask(
            prefix=self.prefix,
            key_start_T=self.key_start_T,
            key_end_T=self.key_end_T,
            query_start_N=self.query_start_N[block],
            key_position_T=self.key_position_T,
            query_position_N=self.query_position_N[block],
            window=self.window,
            first=self.first,
        )

    def within(self, window: int | None) -> AttentionMask:
        """The mask of layers with such a window, over the last ``keys`` keys of its own: no query sees those before.

        Itself without a window. Made once per pass and window: a pass asks for it in every layer.
        """
        if window is None:
            return self
        found = self._windowed.get(window)
        if found is None:
            gone = max(0, self.prefix + 1 - window)
            # a query cannot be further from the first key than all keys are long
            hides = self.keys - gone > window
            found = replace(
                self,
                prefix=self.prefix - gone,
                window=window if hides else None,
                first=self.first + gone,
                _windowed={},
                _bias={},
            )
            self._windowed[window] = found
        return found

    def visible_NT(self) -> torch.Tensor:
        """Dense visibility [N, T] of the tree slots, as the reference ops use it."""
        query_N1 = self.query_start_N[:, None]
        visible_NT = (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)
        return visible_NT if self.window is None else visible_NT & self._near(self.key_position_T, self.window)

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
            bias_RNS = bias_QS.view(heads, N, self.keys)
            bias_RNS[:, :, self.prefix :].masked_fill_(hidden_NT, float("-inf"))
            if self.window is not None:
                position_P = torch.arange(self.first, self.first + self.prefix, device=hidden_NT.device)
                hidden_NP = self._near(position_P, self.window).logical_not_()
                bias_RNS[:, :, : self.prefix].masked_fill_(hidden_NP, float("-inf"))
            self._bias[dtype, heads] = bias_QS
        return bias_QS

    def _near(self, position_S: torch.Tensor, window: int) -> torch.Tensor:
        """Which keys at these positions the window leaves in each query's sight, [N, S]."""
        return self.query_position_N[:, None] - position_S < window


def _depth(start_T: torch.Tensor, end_T: torch.Tensor) -> torch.Tensor:
    """How many other slots each slot sees, which are its ancestors: int32 [T]."""
    start_T1 = start_T[:, None]
    return ((start_T <= start_T1) & (start_T1 < end_T)).sum(1, dtype=torch.int32) - 1
