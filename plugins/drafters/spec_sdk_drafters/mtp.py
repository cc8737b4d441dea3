"""Drafting with the prediction module that was trained with the target: multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import option
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import PREDICTION_MODULES
from spec_sdk.model.models import Models
from spec_sdk_drafters.chosen_vocabulary import context_vocabulary_option, head_session, vocabulary_option
from spec_sdk_drafters.growing_drafter import GROWTHS
from spec_sdk_drafters.growing_head import OneLayerHeadDrafter


@dataclass
class MtpConfig:
    """Options of drafting with a prediction module; those of the chosen growth stand beside them."""

    checkpoint: str | None = option(
        None,
        "the module: a directory, a .gguf file, or a Hugging Face hub id",
        means={None: "the one among the target's own tensors"},
    )
    state: str = option(
        "auto",
        "the target's last state that the module reads",
        choices={
            "auto": "what its layout means",
            "after_norm": "after the final norm",
            "before_norm": "before it",
        },
    )
    context: int | None = option(
        None, "longest text in tokens to draft for", minimum=2, means={None: "the target's max_position_embeddings"}
    )
    vocabulary: int | None = vocabulary_option()
    context_vocabulary: Any = context_vocabulary_option()
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class MtpDrafter(OneLayerHeadDrafter):
    """Drafts a chain or tree with the prediction module that was trained with the target (MTP).

    The module predicts one token more than the target; for those behind it, it is applied to its own output.
    """

    name = "mtp"
    Config = MtpConfig
    config: MtpConfig
    parts = {"growth": "growth"}

    def __init__(self, config: MtpConfig, models: Models) -> None:
        super().__init__(config, models)
        choices = HeadChoices(context=config.context, state=config.state)
        model = models.draft_head(config.checkpoint, PREDICTION_MODULES, choices)
        self.draft_name, self.draft_session = model.name, head_session(model.head, config)
        self._use(self.draft_session.head, self.draft_session)
