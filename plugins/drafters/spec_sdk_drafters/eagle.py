"""Drafting from the target's hidden states with a published EAGLE head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import option
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import EAGLE_HEADS
from spec_sdk.model.models import Models
from spec_sdk_drafters.chosen_vocabulary import context_vocabulary_option, head_session, vocabulary_option
from spec_sdk_drafters.growing_drafter import GROWTHS
from spec_sdk_drafters.growing_head import OneLayerHeadDrafter


def weights_option() -> str:
    """The option ``weights``."""
    return option(
        "auto",
        "of the head's linear layers, in memory",
        choices={
            "auto": "4 bits, or else 8, where the backend multiplies those fast",
            "dense": "in model.dtype",
            "int8": "8 bits",
            "int4": "4 bits",
        },
    )


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
    weights: str = weights_option()
    vocabulary: int | None = vocabulary_option()
    context_vocabulary: Any = context_vocabulary_option()
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class EagleDrafter(OneLayerHeadDrafter):
    """Drafts a chain or tree with a head that reads the target's hidden states (EAGLE, EAGLE-2, EAGLE-3, HASS).

    In the tree a node's pair has what the head returned at its parent.
    """

    name = "eagle"
    Config = EagleConfig
    config: EagleConfig
    parts = {"growth": "growth"}

    def __init__(self, config: EagleConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        choices = HeadChoices(config.method, layers, config.context, weights=config.weights)
        model = models.draft_head(config.checkpoint, EAGLE_HEADS, choices)
        self.draft_name, self.draft_session = model.name, head_session(model.head, config)
        self._use(self.draft_session.head, self.draft_session)
