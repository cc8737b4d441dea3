"""From scored trees to checked verdicts, and the tokens that these give.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts.drafter import Drafter
from spec_sdk.contracts.request import Verdict
from spec_sdk.contracts.verifier import Ahead, Verifier
from spec_sdk.engine.committed_tokens import clip, followed, penalised
from spec_sdk.engine.constrained_tree import check_mask
from spec_sdk.engine.faults import count_fault, draws_fault, verdict_fault
from spec_sdk.engine.roster import Roster
from spec_sdk.engine.target import Target
from spec_sdk.engine.turn import Turn, going_on
from spec_sdk.errors import CallOf, PluginFault, RequestError, UnusableLogits, UserError, WrongDraw
from spec_sdk.ops import attempt, read_decisions, read_tops

HALF_PRECISION = "float16 overflows where bfloat16 and float32 do not: model.dtype"


class Verification:
    """The verifier at work. An error ends the requests that it is of, in the ``roster``."""

    def __init__(self, verifier: Verifier, drafter: Drafter, target: Target, roster: Roster) -> None:
        self._verifier, self._drafter, self._target, self._roster = verifier, drafter, target, roster
        self._in_verifier = CallOf("verifier", verifier.name)

    def ahead(self, turns: Sequence[Turn]) -> dict[int, Ahead]:
        """What the verifier says by slot before the pass, where the pass may decide on all of them; else nothing."""
        ahead: dict[int, Ahead] = {}
        for turn in turns if self._target.one_launch else ():
            with self._roster.ending([turn.active]):
                told = self._verifier.ahead(turn.tree, turn.active.view)
                if told is None:
                    # one read of the device for all: verdicts that need logits first are made together with the others
                    return {}
                ahead[turn.active.slot] = told
        return ahead

    def verify(self, turns: list[Turn]) -> list[Turn]:
        """The accepted path of every tree, and the tokens that it gives; the turns whose requests go on."""
        logits: dict[int, torch.Tensor] = {}
        for turn in turns:
            with self._roster.ending([turn.active]):
                if fault := draws_fault(turn.tree, turn.logits_NV.shape[-1]):
                    raise PluginFault(f"drafter {self._drafter.name!r}: {fault}")
                logits[turn.active.slot] = penalised(turn.logits_NV, turn.tree, turn.active.view)
        turns = going_on(turns)
        if not turns:
            return turns
        # before the verdicts, which may be written over the logits; read after them, when the device is done
        asking, count = [turn for turn in turns if turn.active.drafting], self._drafter.target_top_k
        tops = [turn.active.view.ops.top_log_probabilities(logits[turn.active.slot], count) for turn in asking if count]
        with self._roster.ending([turn.active for turn in turns]):
            verdicts = self._verdicts(turns, [logits[turn.active.slot] for turn in turns])
            for turn, verdict in zip(turns, verdicts, strict=True):
                with self._roster.ending([turn.active]):
                    turn.verdict = followed(self._checked(verdict, turn), turn.active.state.unfollowed)
                    turn.tokens = clip(turn.verdict, turn.active.view)
            # a captured pass leaves them on the device, which is done now
            for turn in turns:
                turn.attention = turn.scores.attention
            if tops:
                for turn, top in zip(asking, read_tops(tops), strict=True):
                    turn.top = top
        return going_on(turns)

    def _verdicts(self, turns: Sequence[Turn], logits: Sequence[torch.Tensor]) -> Sequence[Verdict | Exception]:
        """One for each turn. A call that raises ends all of them: asked again, it would take other random numbers."""
        name = f"verifier {self._verifier.name!r}"
        made = {i: turn.pending for i, turn in enumerate(turns) if turn.pending is not None}
        left = [i for i in range(len(turns)) if i not in made]
        found: dict[int, Verdict | Exception] = {}
        for i, decision in zip(made, read_decisions([*made.values()]), strict=True):
            if isinstance(decision, Exception):
                found[i] = decision
            else:
                found[i] = attempt(self._verifier.decided, turns[i].tree, decision)
        if left:
            trees, views = [turns[i].tree for i in left], [turns[i].active.view for i in left]
            try:
                with self._in_verifier:
                    verdicts = self._verifier.verify(trees, [logits[i] for i in left], views)
            except RequestError as error:
                raise ValueError(f"{name}: {error}") from error
            if fault := count_fault(verdicts, len(left), "verdict"):
                raise PluginFault(f"{name}: {fault}")
            found |= dict(zip(left, verdicts, strict=True))
        return [found[i] for i in range(len(turns))]

    def _checked(self, verdict: Verdict | Exception, turn: Turn) -> Verdict:
        """The verdict. Raises the exception that stands in its place, and PluginFault for one that cannot be used."""
        if isinstance(verdict, UnusableLogits):
            step, tree = turn.active.view.step + 1, turn.tree
            check_mask(
                turn.active.state,
                self._target.vocabulary,
                [tree.token_N[node] for node in tree.path_to(verdict.row)[1:]],
            )
            raise UserError(f"step {step}, target: {verdict} (row = tree node; {HALF_PRECISION})") from verdict
        if isinstance(verdict, WrongDraw):
            raise verdict.by(self._drafter.name) from verdict
        if isinstance(verdict, Exception):
            self._in_verifier.note(verdict)
            raise verdict
        if fault := verdict_fault(verdict, turn.tree, turn.scores.logits_NV.shape[-1]):
            raise PluginFault(f"verifier {self._verifier.name!r}: {fault}")
        return verdict
