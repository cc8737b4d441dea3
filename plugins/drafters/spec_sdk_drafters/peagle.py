"""Drafting several tokens in one pass of an EAGLE head that was trained for it: P-EAGLE.

Legend: R requests, P positions ahead, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Request
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import PARALLEL_EAGLE_HEADS
from spec_sdk.model.draft_heads.peagle import PEagleHead
from spec_sdk.model.draft_heads.peagle_session import PEagleSession
from spec_sdk.model.models import Models
from spec_sdk_drafters.eagle import weights_option
from spec_sdk_drafters.one_pass import OnePassConfig, OnePassDrafter


@dataclass
class PEagleConfig(OnePassConfig):
    """Options of drafting with a P-EAGLE head."""

    weights: str = weights_option()


class PEagleDrafter(OnePassDrafter):
    """Drafts the tree of the most probable paths through what an EAGLE head guesses in one pass (P-EAGLE).

    The pass that feeds the target's states of accepted tokens goes on with a row for every further position, which has
    the mask token and a learned state. The rows do not see each other's guesses.
    """

    name = "peagle"
    Config = PEagleConfig
    config: PEagleConfig
    head: PEagleHead
    session: PEagleSession

    def __init__(self, config: PEagleConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        choices = HeadChoices("auto", layers, config.context, weights=config.weights)
        model = models.draft_head(config.checkpoint, PARALLEL_EAGLE_HEADS, choices)
        self.draft_name, session = model.name, PEagleSession(model.head)
        self._use(session.head, session)

    def room(self, request: Request) -> int:
        room = super().room(request)
        return room if self.head.drafts is None else min(room, self.head.drafts)

    def returned(self, requests: Sequence[Request], positions: int) -> torch.Tensor:
        return self.session.ahead(*self._take_unfed(requests), positions)
