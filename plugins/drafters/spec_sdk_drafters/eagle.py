"""Drafting from the target's hidden states with a published EAGLE head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import option
from spec_sdk.model.draft_heads.head import DraftHead, DraftHeadExecutor
from spec_sdk.model.draft_heads.loading import HeadChoices
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.models import Models
from spec_sdk_drafters.chosen_vocabulary import (
    context_vocabulary_of,
    context_vocabulary_option,
    reduced_to,
    vocabulary_option,
)
from spec_sdk_drafters.feature_drafter import FeatureDrafter
from spec_sdk_drafters.growing_drafter import GROWTHS


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
    weights: str = option(
        "auto",
        "of the head's linear layers, in memory",
        choices={
            "auto": "8 bits where the backend multiplies those fast",
            "dense": "in model.dtype",
            "int8": "8 bits",
            "int4": "4 bits",
        },
    )
    vocabulary: int | None = vocabulary_option()
    context_vocabulary: Any = context_vocabulary_option()
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class EagleDrafter(FeatureDrafter):
    """Drafts a chain or tree with a head that reads the target's hidden states (EAGLE, EAGLE-2, EAGLE-3, HASS).

    In the tree a node's pair has what the head returned at its parent.
    """

    name = "eagle"
    Config = EagleConfig
    config: EagleConfig
    head: DraftHead
    session: DraftHeadSession
    parts = {"growth": "growth"}

    def __init__(self, config: EagleConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        model = models.draft_head(
            config.checkpoint, HeadChoices(config.method, layers, config.context, weights=config.weights)
        )
        self.draft_name = model.name
        executor = reduced_to(model.executor, config)
        assert isinstance(executor, DraftHeadExecutor)
        self.draft_session = DraftHeadSession(executor)
        self.draft_session.context_vocabulary = context_vocabulary_of(executor, config)
        self._use(executor.head, self.draft_session)
