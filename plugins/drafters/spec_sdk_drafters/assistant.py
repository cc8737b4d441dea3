"""Drafting with an assistant: a small draft model that attends to the target's K and V (Gemma 4)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import DraftLogits, Hidden, Request, option
from spec_sdk.errors import UserError
from spec_sdk.model.assistant.session import AssistantSession
from spec_sdk.model.models import Models
from spec_sdk_drafters.growing_drafter import GROWTHS, GrowingDrafter
from spec_sdk_drafters.noting_drafter import NotingDrafter


@dataclass
class AssistantConfig:
    """Options of drafting with an assistant; those of the chosen growth stand beside them."""

    checkpoint: str | None = option(
        None,
        "the assistant: a directory, a .gguf file, or a Hugging Face hub id",
        means={None: "none; it must be named"},
    )
    weights: str = option(
        "auto",
        "its matrices in memory",
        choices={
            "auto": "4 bits, or else 8, where the backend multiplies those fast",
            "dense": "in model.dtype",
            "int8": "8 bits",
            "int4": "4 bits",
        },
    )
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class AssistantDrafter(NotingDrafter, GrowingDrafter):
    """Drafts a chain or tree with an assistant, which attends to the target's own K and V.

    It has no cache and is fed no prompt. A node's state is what it made of the node's parent; all nodes stand at the
    position of the pending token.
    """

    name = "assistant"
    Config = AssistantConfig
    config: AssistantConfig
    parts = {"growth": "growth"}
    catches_up = False
    taps_last_only = True
    session: AssistantSession

    def __init__(self, config: AssistantConfig, models: Models) -> None:
        super().__init__(config, models)
        if config.checkpoint is None:
            raise UserError(
                "drafter.checkpoint: names no assistant; give a directory, a .gguf file, or a Hugging Face hub id "
                "such as google/gemma-4-E2B-it-assistant"
            )
        self.draft_name, assistant = models.assistant(config.checkpoint, config.weights)
        self.session = AssistantSession(assistant)
        self.taps = assistant.taps
        self._last_1W: dict[int, torch.Tensor] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self._last_1W.pop(request.slot, None)
            self._note(request, hidden)

    def room(self, request: Request) -> int:
        # the first token of a text has no state before it
        return request.target.context - len(request.tokens) if request.slot in self._last_1W else 0

    def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[DraftLogits]]:
        slots = [request.slot for request in requests]
        tokens, states = [request.pending_token for request in requests], [self._last_1W[slot] for slot in slots]
        return functools.partial(self.session.begin, requests[0].target, slots, tokens, states)

    def finish(self, requests: Sequence[Request]) -> None:
        super().finish(requests)
        for request in requests:
            self._last_1W.pop(request.slot, None)
            self.session.forget(request.slot)

    def _note(self, request: Request, hidden: Hidden) -> None:
        (tap,) = self.taps
        if len(hidden[tap]):
            # a copy, so that a prompt's other states can go
            self._last_1W[request.slot] = hidden[tap][-1:].clone()
