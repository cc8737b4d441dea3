"""The target's pass over trees that lie on the device, launched before the host has read them.

While that pass runs the host reads what was drafted, lets the growths close the same trees, and checks them. Where it
comes to others, the pass is of no use; what it wrote lies behind the committed tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spec_sdk.contracts.drafter import Drafter
from spec_sdk.engine.target import Target
from spec_sdk.engine.turn import Turn
from spec_sdk.model.session import Scores
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops import attempt
from spec_sdk.ops.grown_paths import ClosedTrees


@dataclass(frozen=True)
class LaunchedPass:
    """``scores`` of the pass over the ``closed`` trees of some turns, with rows behind the trees' own. ``began``,
    ``ended``: marks of the clock. ``taken``: whether the turns go on with it.
    """

    turns: Sequence[Turn]
    closed: ClosedTrees
    scores: Sequence[Scores]
    began: Any
    ended: Any
    taken: bool = False


class TreesAhead:
    """Where the drafter tells of its trees before it has read them, the target's pass is launched at once: if it is
    over all requests of the cycle, which share one.
    """

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self._target, self._drafter = target, drafter
        self._launched: LaunchedPass | None = None

    @contextlib.contextmanager
    def while_proposing(self, turns: Sequence[Turn], asked: Sequence[Turn], clock: StepClock) -> Iterator[None]:
        """Around the call that asks for the trees of ``asked``, which are some of the cycle's ``turns``."""
        self._launched = None
        plain = not any(turn.above or turn.active.view.constrained for turn in asked)
        if not (self._target.scores_closed and plain and len(asked) == len(turns)):
            yield
            return
        self._drafter.trees_told = lambda closed: self._launch(asked, closed, clock)
        try:
            yield
        except BaseException:
            self._launched = None
            raise
        finally:
            self._drafter.trees_told = None

    def _launch(self, turns: Sequence[Turn], closed: ClosedTrees, clock: StepClock) -> None:
        slots, roots = [turn.active.slot for turn in turns], [turn.active.view.pending_token for turn in turns]
        began = clock.mark()
        scores = attempt(self._target.score_closed, slots, roots, closed, self._drafter.taps)
        # what fails for want of memory, say, is asked for again, and then ends the requests
        if not isinstance(scores, Exception):
            self._launched = LaunchedPass(turns, closed, scores, began, clock.mark())

    def hand_out(self, turns: Sequence[Turn]) -> LaunchedPass | None:
        """The pass that was launched while these turns' trees were proposed, if one was. It has given them their scores
        where it is ``taken``; nothing was done where it is over other trees.
        """
        launched, self._launched = self._launched, None
        if launched is None or not self._is_over(launched, turns):
            return launched
        for turn, scores in zip(turns, launched.scores, strict=True):
            size = turn.tree.size
            hidden = {layer: h_NM[:size] for layer, h_NM in scores.hidden.items()}
            turn.scores = replace(scores, logits_NV=scores.logits_NV[:size], hidden=hidden)
        return replace(launched, taken=True)

    def _is_over(self, launched: LaunchedPass, turns: Sequence[Turn]) -> bool:
        if [*map(id, turns)] != [*map(id, launched.turns)]:
            return False
        slots, trees = [turn.active.slot for turn in turns], [turn.tree for turn in turns]
        return launched.closed.are(trees) and self._target.take_ahead(slots, [tree.token_N for tree in trees])
