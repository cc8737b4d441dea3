"""The target's pass over a tree that lies on the device, launched before the host has read the tree.

While that pass runs the host reads what was drafted, lets the growth close the same tree, and checks it. Where it comes
to another one, the pass is of no use; what it wrote lies behind the committed tokens.
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
from spec_sdk.ops.grown_paths import ClosedTree


@dataclass(frozen=True)
class TreeAhead:
    """``scores`` of the pass over the ``closed`` tree of a turn, with rows behind the tree's own. ``began``, ``ended``:
    marks of the clock. ``taken``: whether the turn goes on with it.
    """

    turn: Turn
    closed: ClosedTree
    scores: Scores
    began: Any
    ended: Any
    taken: bool = False


class TreesAhead:
    """Where the drafter tells of its tree before it has read it, the target's pass is launched at once: for one request
    alone, since several share a pass.
    """

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self._target, self._drafter = target, drafter
        self._launched: TreeAhead | None = None

    @contextlib.contextmanager
    def while_proposing(self, turns: Sequence[Turn], asked: Sequence[Turn], clock: StepClock) -> Iterator[None]:
        """Around the call that asks for the trees of ``asked``, which are some of the cycle's ``turns``."""
        self._launched = None
        (turn,) = asked if len(asked) == len(turns) == 1 else (None,)
        if turn is None or turn.above or turn.active.view.constrained or not self._target.one_launch:
            yield
            return
        self._drafter.tree_told = lambda closed: self._launch(turn, closed, clock)
        try:
            yield
        finally:
            self._drafter.tree_told = None

    def _launch(self, turn: Turn, closed: ClosedTree, clock: StepClock) -> None:
        began, root = clock.mark(), turn.active.view.pending_token
        scores = attempt(self._target.score_closed, turn.active.slot, root, closed, self._drafter.taps)
        # what fails for want of memory, say, is asked for again, and then ends the request
        if scores is not None and not isinstance(scores, Exception):
            self._launched = TreeAhead(turn, closed, scores, began, clock.mark())

    def hand_out(self, turns: Sequence[Turn]) -> TreeAhead | None:
        """The pass that was launched while these turns' trees were proposed, if one was. It has given them their scores
        where it is ``taken``; nothing was done where it is over another tree.
        """
        launched, self._launched = self._launched, None
        if launched is None or not self._is_over(launched, turns):
            return launched
        scores, size = launched.scores, launched.turn.tree.size
        hidden = {layer: h_NM[:size] for layer, h_NM in scores.hidden.items()}
        launched.turn.scores = replace(scores, logits_NV=scores.logits_NV[:size], hidden=hidden)
        return replace(launched, taken=True)

    def _is_over(self, launched: TreeAhead, turns: Sequence[Turn]) -> bool:
        if len(turns) != 1 or turns[0] is not launched.turn:
            return False
        slot, tree = launched.turn.active.slot, launched.turn.tree
        same = launched.closed.is_tree(tree.token_N, tree.depth_N, tree.end_N)
        return same and self._target.take_ahead([slot], [tree.token_N])
