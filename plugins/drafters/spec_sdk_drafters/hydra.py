"""Drafting with Hydra heads: one per position ahead, each of which reads the tokens between as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Request, option
from spec_sdk.model.draft_heads.hydra import HydraHeads
from spec_sdk.model.draft_heads.hydra_session import HydraSession
from spec_sdk.model.draft_heads.loading import HYDRA_HEADS
from spec_sdk.model.models import Models
from spec_sdk_drafters.growing_drafter import GROWTHS
from spec_sdk_drafters.growing_head import GrowingHeadDrafter


@dataclass
class HydraConfig:
    """Options of drafting with Hydra heads; those of the chosen growth stand beside them."""

    checkpoint: str | None = option(
        None,
        "the heads: a directory, or a Hugging Face hub id",
        means={None: "those that an installed package has for the target"},
    )
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")


class HydraDrafter(GrowingHeadDrafter):
    """Drafts a chain or tree with Hydra heads, one per position ahead, that read the tokens between (Hydra, Hydra++).

    A tree is as deep as there are heads at most. Each level is one small pass, and only Hydra++ has a cache.
    """

    name = "hydra"
    Config = HydraConfig
    config: HydraConfig
    head: HydraHeads
    parts = {"growth": "growth"}

    def __init__(self, config: HydraConfig, models: Models) -> None:
        super().__init__(config, models)
        model = models.draft_head(config.checkpoint, HYDRA_HEADS)
        self.draft_name = model.name
        self.catches_up = model.head.prefix is not None
        self._use(model.head, HydraSession(model.head))

    def room(self, request: Request) -> int:
        return min(super().room(request), self.head.positions)
