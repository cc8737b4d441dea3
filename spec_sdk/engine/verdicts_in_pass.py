"""Verdicts that the target's passes make as their last operation, where each pass is one launch.

Legend: B requests of a pass, N rows of a request, V vocabulary, X numbers of a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts.verifier import Ahead
from spec_sdk.model.executor import Epilogue
from spec_sdk.ops import DecisionsInPass, LogitsToCome, PendingDecision


class VerdictsInPass:
    """What the passes over some trees are to make of their logits, and the decisions from that.

    ``ahead``: of each tree what its verifier can tell before the pass.
    """

    def __init__(self, ahead: Sequence[Ahead]) -> None:
        self.ahead = ahead
        self._places: dict[int, tuple[DecisionsInPass, int]] = {}

    def epilogue(self, index: Sequence[int], logits: LogitsToCome) -> Epilogue | None:
        """What the pass over the trees of these numbers makes of its logits; None: nothing, and so verdicts come after
        it.
        """
        ahead = [self.ahead[i] for i in index]
        # a pass decides by one rule and one set of operations
        if any((told.rule, told.ops) != (ahead[0].rule, ahead[0].ops) for told in ahead):
            return None
        decisions = ahead[0].ops.accept_in_pass(ahead[0].rule, [told.unscored for told in ahead], logits)
        if decisions is None:
            return None
        self._places.update((i, (decisions, b)) for b, i in enumerate(index))
        return decisions.epilogue

    def root_tokens(self, made: torch.Tensor) -> torch.Tensor | None:
        """Where all trees are roots alone and of one pass, which made this [B, X]: the tokens [B] that come after them,
        in the order of the trees, on the device. None where only the host can tell.
        """
        decisions = {id(decisions): decisions for decisions, _ in self._places.values()}
        if len(self._places) < len(self.ahead) or len(decisions) != 1:
            return None
        (of_pass,) = decisions.values()
        return None if of_pass.root_tokens is None else of_pass.root_tokens(made)

    def pending(self, i: int, made: torch.Tensor | None) -> PendingDecision | None:
        """The decision on tree i from what its pass made [B, X]; None where that made nothing."""
        if made is None or i not in self._places:
            return None
        decisions, b = self._places[i]
        return PendingDecision([made], lambda host: decisions.decision(b, host[0][b]))
