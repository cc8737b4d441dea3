"""Drafting from the target's hidden states with a published EAGLE head.

Legend: N pairs of a token and a feature, M model dim, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import Hidden, Request, option
from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.loading import HeadChoices
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.models import Models
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk_drafters.chosen_vocabulary import (
    context_vocabulary_of,
    context_vocabulary_option,
    reduced_to,
    vocabulary_option,
)
from spec_sdk_drafters.growing_drafter import GROWTHS, GrowingDrafter
from spec_sdk_drafters.unfed_states import UnfedStates


@dataclass
class EagleConfig:
    """Options of drafting with an EAGLE head; those of the chosen growth stand beside them."""

    checkpoint: str | None = option(
        None,
        "the head: a directory, or a Hugging Face hub id",
        means={None: "the one that an installed package has for the target"},
    )
    method: str = option(
        "auto",
        "what the head must be",
        choices={"auto": "what its files say", "eagle": "EAGLE-1, EAGLE-2 or HASS", "eagle3": "EAGLE-3"},
    )
    target_layers: list[int] | None = option(
        None,
        "of an EAGLE-3 head: the target layers that it reads, 0 the embedding, i what leaves the i-th layer",
        minimum=0,
        means={None: "those that its files mean"},
    )
    context: int | None = option(
        None, "longest text in tokens to draft for", minimum=2, means={None: "the head's max_position_embeddings"}
    )
    vocabulary: int | None = vocabulary_option()
    context_vocabulary: Any = context_vocabulary_option()
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class EagleDrafter(GrowingDrafter):
    """Drafts a chain or tree with a head that reads the target's hidden states (EAGLE, EAGLE-2, EAGLE-3, HASS).

    The head is fed pairs: a token, and the target's states at the position before it. In the tree a node's pair has
    what the head returned at its parent. The cache keeps only pairs of the target's own states, so those of accepted
    tokens are fed anew in the next round.
    """

    name = "eagle"
    Config = EagleConfig
    config: EagleConfig
    parts = {"growth": "growth"}

    def __init__(self, config: EagleConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        model = models.draft_head(config.checkpoint, HeadChoices(config.method, layers, config.context))
        self.draft_name = model.name
        executor = reduced_to(model.executor, config)
        assert isinstance(executor, DraftHeadExecutor)
        self.head = executor.head
        self.taps = tuple(sorted(self.head.taps))
        self.session: DraftHeadSession = DraftHeadSession(executor)
        self.session.context_vocabulary = context_vocabulary_of(executor, config)
        self.draft_session = self.session
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

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        assert path_hidden is not None
        for request, hidden in zip(requests, path_hidden, strict=True):
            self._note(request, hidden)

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
