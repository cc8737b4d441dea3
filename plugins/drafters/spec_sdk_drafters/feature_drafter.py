"""What drafters that read the target's hidden states through a head with a session of its own share.

The head is fed pairs: the pair number t is the token t + 1 of the text, and the feature of position t.

Legend: N pairs of a token and a feature, M model dim, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from spec_sdk.contracts import Hidden, Request
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk_drafters.growing_drafter import GrowingDrafter, GrowingSession
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.unfed_states import UnfedStates


class FeatureHead(Protocol):
    """What makes features of the target's hidden states."""

    taps: tuple[int, ...]

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The features [N, M] of target states, layer → [N, target's model dim]."""


class PairSession(GrowingSession, Protocol):
    """A head at work, whose text begins with the request's second token."""

    @property
    def context(self) -> int:
        """Most pairs that it can hold."""

    def length(self, slot: int) -> int:
        """Committed pairs of a slot."""

    def open(self, slot: int, tokens: Sequence[int], keep: bool) -> int:
        """Give ``slot`` to a new request; what is left of the one before it is forgotten."""

    def prefill_pairs(self, slot: int, tokens: Sequence[int], features_NM: torch.Tensor) -> None:
        """Commit pairs."""

    def feed_pairs(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Commit each slot's pairs, features [N, M], and return the logits [V] after its last one, a tree's root."""

    def forget(self, slot: int) -> None:
        """A slot's request has ended."""


class FeatureDrafter(NotingDrafter, GrowingDrafter):
    """Feeds a head the pairs of what was committed, then lets the growth expand the trees.

    A node's pair in the tree has what the head itself makes of its parent. Only pairs of the target's own states are
    kept, so those of accepted tokens are fed anew in the next round. A subclass calls :meth:`_use`.
    """

    head: FeatureHead
    session: PairSession

    def _use(self, head: FeatureHead, session: PairSession) -> None:
        self.head, self.session = head, session
        self.taps = tuple(sorted(head.taps))
        self._unfed = UnfedStates(self.taps)

    def room(self, request: Request) -> int:
        # the first token makes no pair before the target has seen it
        has_feature = self.session.length(request.slot) > 0 or self._unfed.has_any(request.slot)
        return self.session.context - len(request.tokens) if has_feature else 0

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self.session.open(request.slot, (), keep=False)
            self._unfed.open(request.slot)
            self._note(request, hidden)
            self._feed_all_but(1, request)

    def finish(self, requests: Sequence[Request]) -> None:
        super().finish(requests)
        for request in requests:
            self._unfed.drop(request.slot)
            self.session.forget(request.slot)

    def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[torch.Tensor]]:
        slots = [request.slot for request in requests]
        for request in requests:
            # tokens of many plain steps would make one pass too wide
            self._feed_all_but(PREFILL_CHUNK, request)
        features = [self.head.features(self._unfed.take(slot)) for slot in slots]
        unfed = [request.tokens[self.session.length(request.slot) + 1 :] for request in requests]
        return functools.partial(self.session.feed_pairs, slots, unfed, features)

    def _note(self, request: Request, hidden: Hidden) -> None:
        if len(request.tokens) <= self.session.context:
            self._unfed.note(request.slot, hidden)

    def _feed_all_but(self, last: int, request: Request) -> None:
        """Feed what was noted of a request, up to the ``last`` pairs."""
        slot = request.slot
        for hidden in self._unfed.take_all_but(last, slot):
            features_NM = self.head.features(hidden)
            first = self.session.length(slot) + 1
            self.session.prefill_pairs(slot, request.tokens[first : first + len(features_NM)], features_NM)
