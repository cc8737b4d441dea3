"""Drafting with the prediction module that was trained with the target: multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import option
from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.model.draft_heads.loading import HeadChoices
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.models import Models
from spec_sdk_drafters.feature_drafter import FeatureDrafter
from spec_sdk_drafters.growing_drafter import GROWTHS


@dataclass
class MtpConfig:
    """Options of drafting with a prediction module; those of the chosen growth stand beside them."""

    checkpoint: str | None = option(
        None,
        "the module: a directory, or a Hugging Face hub id",
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
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class MtpDrafter(FeatureDrafter):
    """Drafts a chain or tree with the prediction module that was trained with the target (MTP).

    The module predicts one token more than the target; for those behind it, it is applied to its own output.
    """

    name = "mtp"
    Config = MtpConfig
    config: MtpConfig
    head: DraftHead
    session: DraftHeadSession
    parts = {"growth": "growth"}

    def __init__(self, config: MtpConfig, models: Models) -> None:
        super().__init__(config, models)
        choices = HeadChoices("mtp", context=config.context, state=config.state)
        model = models.prediction_module(config.checkpoint, choices)
        self.draft_name = model.name
        self.draft_session = DraftHeadSession(model.executor)
        self._use(model.executor.head, self.draft_session)
