"""What drafters share that feed the target's hidden states to a head with a session of its own.

Legend: N positions, M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from spec_sdk.contracts import Hidden, Request
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.unfed_states import UnfedStates


class FeatureHead(Protocol):
    """What makes features of the target's hidden states."""

    taps: tuple[int, ...]

    def features(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The features [N, M] of target states, layer → [N, target's model dim]."""


class FeatureSession(Protocol):
    """A head at work. ``token_offset``: how many tokens of the text come before the first that it is fed: 1 where the
    feature of a position is paired with the token after it.
    """

    token_offset: int

    @property
    def context(self) -> int:
        """Most positions that it can hold."""

    def length(self, slot: int) -> int:
        """Committed positions of a slot."""

    def open(self, slot: int, tokens: Sequence[int], keep: bool) -> int:
        """Give ``slot`` to a new request; what is left of the one before it is forgotten."""

    def feed_features(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> None:
        """Commit each slot's next positions: their tokens, and their features [N, M]."""

    def forget(self, slot: int) -> None:
        """A slot's request has ended."""


class Unfed(NamedTuple):
    """What some requests' slots are to be fed: tokens, and features [N, M]."""

    slots: list[int]
    tokens: list[list[int]]
    features: list[torch.Tensor]


class FeatureDrafter(NotingDrafter):
    """Notes the target's states, and feeds their features when it drafts. A subclass calls :meth:`_use`."""

    head: FeatureHead
    session: FeatureSession

    def _use(self, head: FeatureHead, session: FeatureSession) -> None:
        self.head, self.session = head, session
        self.taps = tuple(sorted(head.taps))
        self._unfed = UnfedStates(self.taps)

    def room(self, request: Request) -> int:
        """Most levels that may be drafted behind the request's tokens."""
        # the first token makes no pair before the target has seen it
        has_feature = self.session.length(request.slot) > 0 or self._unfed.has_any(request.slot)
        return self.session.context - len(request.tokens) if has_feature else 0

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self.session.open(request.slot, (), keep=False)
            self._unfed.open(request.slot)
            self._note(request, hidden)
            # a tree grows behind the last pair, which is therefore fed with it
            self._feed_all_but(self.session.token_offset, request)

    def finish(self, requests: Sequence[Request]) -> None:
        super().finish(requests)
        for request in requests:
            self._unfed.drop(request.slot)
            self.session.forget(request.slot)

    def _take_unfed(self, requests: Sequence[Request]) -> Unfed:
        """What is to be fed of the requests that have anything. What would make one pass too wide is fed already."""
        for request in requests:
            self._feed_all_but(PREFILL_CHUNK, request)
        asked = [request for request in requests if self._unfed.has_any(request.slot)]
        features = [self.head.features(self._unfed.take(request.slot)) for request in asked]
        tokens = [self._tokens(request, len(of)) for request, of in zip(asked, features, strict=True)]
        return Unfed([request.slot for request in asked], tokens, features)

    def _note(self, request: Request, hidden: Hidden) -> None:
        if len(request.tokens) <= self.session.context:
            self._unfed.note(request.slot, hidden)

    def _feed_all_but(self, last: int, request: Request) -> None:
        """Feed what was noted of a request, up to the ``last`` positions."""
        for hidden in self._unfed.take_all_but(last, request.slot):
            features_NM = self.head.features(hidden)
            self.session.feed_features([request.slot], [self._tokens(request, len(features_NM))], [features_NM])

    def _tokens(self, request: Request, count: int) -> list[int]:
        """Those that are fed with the next ``count`` features."""
        first = self.session.length(request.slot) + self.session.token_offset
        return list(request.tokens[first : first + count])
