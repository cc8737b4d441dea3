"""A cycle whose pass is given to the device, before its verdicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.engine.pass_ahead import PassAhead
from spec_sdk.engine.turn import Turn
from spec_sdk.engine.verdicts_in_pass import VerdictsInPass
from spec_sdk.model.step_clock import StepClock


@dataclass
class BegunCycle:
    """``verdicts``: what the pass makes of its logits, if it does. ``marks`` of the clock: before and behind drafting,
    and behind the pass. ``reads`` of the device until then. ``ahead``: a pass that the cycle before had launched;
    ``taken``: whether this cycle goes on with that one.
    """

    turns: list[Turn]
    verdicts: VerdictsInPass | None
    marks: Sequence[Any]
    reads: int
    ahead: PassAhead | None = None
    taken: bool = False

    def stage_seconds(self, clock: StepClock) -> tuple[float, float]:
        """Of drafting, and of the pass."""
        draft_s, score_s = (clock.seconds(first, last) for first, last in itertools.pairwise(self.marks))
        if self.ahead is None:
            return draft_s, score_s
        # of a pass that was of no use, what it cost
        return draft_s, clock.seconds(self.ahead.began, self.ahead.ended) + (0.0 if self.taken else score_s)
