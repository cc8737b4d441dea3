"""The pass of a plain step that is launched before the host has read what the step before gave.

Where nothing is drafted, a pass is over the token that the pass before chose, and that lies on the device. So the host
commits, reports and asks while the next pass runs, and the device waits for nothing. Where a request ends, or drafting
begins, the pass is of no use for it; what it wrote lies behind the committed tokens.

Legend: B requests of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spec_sdk.contracts.drafter import Drafter
from spec_sdk.engine.target import Target
from spec_sdk.engine.turn import Active, Turn
from spec_sdk.engine.verdicts_in_pass import VerdictsInPass
from spec_sdk.model.session import Scores
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops import attempt, host_reads


@dataclass
class PassAhead:
    """``prefixes``: of each request, the committed tokens that its row of the pass comes after. ``tokens``: what those
    rows are, once the host knows. ``began``, ``ended``: marks of the clock.
    """

    requests: Sequence[Active]
    prefixes: Sequence[int]
    scores: Sequence[Scores]
    verdicts: VerdictsInPass
    began: Any
    ended: Any
    tokens: dict[int, int] = field(default_factory=dict)

    @classmethod
    def launch(
        cls,
        target: Target,
        turns: Sequence[Turn],
        verdicts: VerdictsInPass,
        taps: Sequence[int],
        clock: StepClock,
        began: Any,
    ) -> PassAhead | None:
        """The pass behind the one of these turns, which has made their ``verdicts``; None where that cannot be.
        ``taps``: layers whose hidden states it gives. ``began``: the mark behind that one.
        """
        if not turns or len(turns) < len(verdicts.ahead):
            return None
        made = turns[0].scores.made
        if made is None or not all(turn.scores.made is made and may_go_on(turn) for turn in turns):
            return None
        token_B = verdicts.root_tokens(made)
        if token_B is None:
            return None
        # ahead of the next pass, so that it need not be waited for
        reading = host_reads.begin(made)
        following = VerdictsInPass(verdicts.ahead)
        slots = [turn.active.slot for turn in turns]
        scores = attempt(target.score_ahead, slots, token_B, taps, following.epilogue)
        if scores is None or isinstance(scores, Exception):
            # what fails for want of memory, say, is asked for again, and then ends the requests that need it
            return None
        for turn in turns:
            assert turn.pending is not None
            turn.pending = replace(turn.pending, tensors=[reading])
        requests, prefixes = [turn.active for turn in turns], [turn.prefix + 1 for turn in turns]
        return cls(requests, prefixes, scores, following, began, clock.mark())

    def learn(self, turns: Sequence[Turn]) -> None:
        """Note what the tokens of the pass were, from the verdicts before it."""
        self.tokens = {id(turn.active): turn.verdict.next_token for turn in turns}

    def hand_out(self, target: Target, turns: Sequence[Turn]) -> bool:
        """Give these turns what the pass made of their trees; false, and nothing done, where it is not over those, or
        another pass has written over it.
        """
        place = {id(active): i for i, active in enumerate(self.requests)}
        for turn in turns:
            i = place.get(id(turn.active))
            if i is None or turn.above or turn.tree.size > 1 or turn.prefix != self.prefixes[i]:
                return False
            if turn.tree.token_N[0] != self.tokens.get(id(turn.active)):
                return False
        if not target.take_ahead([turn.active.slot for turn in turns], [turn.tree.token_N for turn in turns]):
            return False
        for turn in turns:
            i = place[id(turn.active)]
            turn.scores = self.scores[i]
            turn.pending = self.verdicts.pending(i, turn.scores.made)
        return True


PAUSED_FOR = 4
"""Steps in which a policy granted no drafts, after which it is taken to go on so: a wrong guess costs a pass."""


class PlainSteps:
    """Whether the step after a cycle is likely to be a plain one, so that its pass may be launched at once."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._paused_for = 0

    def go_on(self, turns: Sequence[Turn]) -> bool:
        """After the cycle of these turns; to be asked once for each."""
        if not self._drafter.drafts:
            return True
        if turns:
            self._paused_for = 0 if any(turn.budget.depth for turn in turns) else self._paused_for + 1
        # what it wants of the target's logits would be read behind that pass
        return self._paused_for > PAUSED_FOR and not self._drafter.target_top_k


def may_go_on(turn: Turn) -> bool:
    """Whether the request's next step may be a pass over the token that this one gives, and nothing else."""
    active, request = turn.active, turn.active.view
    if turn.pending is None or turn.tree.size > 1 or turn.above or active.asks_for_logits or request.constrained:
        return False
    return request.new_tokens + 1 < request.max_new_tokens
