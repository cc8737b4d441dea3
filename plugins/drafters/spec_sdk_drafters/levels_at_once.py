"""Levels that were drafted at once, given to a growth one after the other as if each had been fed when it asked.

Legend: K nodes of a level, W children of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spec_sdk.contracts import DraftLogits
from spec_sdk.errors import PluginFault
from spec_sdk.model.draft_levels import DraftedLevel
from spec_sdk_drafters.growing_draft import GrowingDraft


@dataclass(frozen=True)
class KnownTops(DraftLogits):
    """Logits of which the most probable children are in host memory already, and nothing else is known."""

    level: DraftedLevel = field(kw_only=True)

    @staticmethod
    def of(level: DraftedLevel, vocabulary: int) -> KnownTops:
        return KnownTops(torch.empty((len(level.token_KW), 0)), None, vocabulary, level=level)

    def top(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        width = self.level.token_KW.shape[1]
        if count != width:
            raise PluginFault(f"a growth of fixed widths asked for {count} children, not {width}")
        return self.level.logprob_KW, self.level.token_KW

    @property
    def full_KV(self) -> torch.Tensor:
        raise PluginFault("a growth of fixed widths asked for whole rows of logits, not for the most probable children")


def grow_known(draft: GrowingDraft, levels: Sequence[KnownTops]) -> None:
    """Let a tree grow that began with the first of these levels, to its end by the others."""
    asks = draft.advance(None)
    for level in levels[1:]:
        if not asks or draft.asked != len(level):
            break
        asks = draft.advance(level)
    else:
        if not asks:
            return
    raise PluginFault("a growth of fixed widths fed other levels than these give")
