"""The drafter at work: what it is told, what it is asked for, and what it may not hand over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from spec_sdk.contracts.drafter import Drafter, Hidden
from spec_sdk.engine.constrained_tree import check_mask
from spec_sdk.engine.faults import count_fault, tree_fault
from spec_sdk.engine.tapped_states import TappedStates
from spec_sdk.engine.target import Target
from spec_sdk.engine.turn import Active, Turn
from spec_sdk.errors import CallOf, PluginFault, RequestError, UnusableLogits, UserError, cause_of
from spec_sdk.model.step_clock import StepClock
from spec_sdk.tree import TokenTree


class Drafting:
    """Whatever the drafter raises has a note that names it.

    ``tapped``: the target's hidden states that the drafter asked for.
    """

    def __init__(self, drafter: Drafter, target: Target, tapped: TappedStates) -> None:
        self._drafter, self._target, self._tapped = drafter, target, tapped
        self._vocabulary = target.vocabulary
        self._name = f"drafter {drafter.name!r}"
        self._call = CallOf("drafter", drafter.name)

    def start(self, requests: Sequence[Active], clock: StepClock) -> float:
        """Let it prepare for these requests; the seconds that it took."""
        began = clock.mark()
        hidden = [self._states_of(active.slot) for active in requests] if self._drafter.taps else None
        with self._call:
            self._drafter.start([active.view for active in requests], hidden)
        for active in requests:
            active.drafting = True
        return clock.seconds(began, clock.mark())

    def _states_of(self, slot: int) -> Hidden:
        """Those of all tokens that are committed, which a prompt of one token has none of."""
        return self._tapped.of(slot) or self._target.prefill(slot, (), self._drafter.taps)

    @contextlib.contextmanager
    def proposing(self, turns: Sequence[Turn]) -> Iterator[None]:
        """Around the call that asks for trees of these turns: what it raises says of whom it is.

        RequestError for one of them, UserError for logits that give no distribution, else what the drafter raises.
        """
        try:
            yield
        except Exception as error:
            self._call.note(error)
            named = error.request if isinstance(error, RequestError) else None
            of = [turn for turn in turns if named in (None, turn.active.state.id)]
            for turn in of:
                check_mask(turn.active.state, self._vocabulary, [])
            if not (of and isinstance(cause_of(error), UnusableLogits)):
                raise
            told = UserError(f"step {of[0].active.state.step + 1}, {self._name}: {error}")
            if named is None:
                raise told from error
            raise RequestError(named, told) from told

    def check_count(self, trees: Sequence[TokenTree], turns: Sequence[Turn]) -> None:
        """Raise PluginFault unless there is a tree for each of these turns."""
        if fault := count_fault(trees, len(turns), "tree"):
            raise PluginFault(f"{self._name}: {fault}")

    def check(self, tree: TokenTree, turn: Turn) -> None:
        """Raise PluginFault for a tree that cannot be this turn's."""
        if fault := tree_fault(tree, turn.active.view.pending_token, turn.budget, self._vocabulary):
            raise PluginFault(f"{self._name}: {fault}")

    def observe(self, turns: Sequence[Turn]) -> None:
        """Tell it what was committed, and before that what it wants to know of the target's scores."""
        views = [turn.active.view for turn in turns]
        with self._call:
            if tops := [turn.top for turn in turns if turn.top is not None]:
                self._drafter.observe_scores(views, [turn.tree for turn in turns], tops)
            self._drafter.observe(views, [turn.tokens for turn in turns], [turn.path_hidden for turn in turns])

    def observe_forced(self, active: Active, tokens: list[int]) -> None:
        """Tell it of tokens that the request's constraint forces."""
        with self._call:
            self._drafter.observe_forced([active.view], [tokens])

    def finish(self, active: Active) -> None:
        """Tell it that a request has ended, if it was started for it."""
        if active.drafting:
            with self._call:
                self._drafter.finish([active.view])
