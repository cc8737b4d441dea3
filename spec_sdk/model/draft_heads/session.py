"""A draft head at work on several requests: its cache, and the features of the trees that grow.

The cache's prefix consists of pairs made of the target's own features. Levels of a tree are laid on top of it, fed by
what the head returned for their parents, and are never committed: the next feed writes over them.

Legend: N pairs, K nodes of a level, T nodes of a tree, M model dim of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.draft_heads.head import FED_LAYER, DraftHeadExecutor
from spec_sdk.model.executor import LogitRows, PassOutput, PassPlan
from spec_sdk.model.runners.sequential import PLAIN
from spec_sdk.model.session import Session
from spec_sdk.ops import DraftLogits
from spec_sdk.ops.grown_paths import GrownPaths, ProbablePaths, RowsToCommit
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.tree import TreeBuilder


class DraftHeadSession(Session):
    """Feeds pairs of tokens and features to a head. Its text begins with the request's second token.

    :meth:`grow` is :meth:`Session.grow`: a growth cannot tell it from a draft model.
    """

    token_offset = 1
    """How many tokens of the text come before that of the first pair."""

    def __init__(self, executor: DraftHeadExecutor) -> None:
        super().__init__(executor)
        self.head = executor.head
        # what each node of a slot's tree feeds its children, in the order of creation
        self._states_TM: dict[int, torch.Tensor] = {}

    def feed_features(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> None:
        """Commit each slot's pairs, features [N, M], in a plain pass."""
        self._feed(slots, tokens, features, PassPlan(PLAIN, (), "none"))

    def feed_pairs(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> list[DraftLogits]:
        """Commit each slot's pairs, features [N, M], and return the logits after its last one, a tree's root: K = 1."""
        return [self._logits(output) for output in self._feed_roots(slots, tokens, features, "last")]

    def feed_pairs_and_grow(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[torch.Tensor],
        paths: Sequence[ProbablePaths],
    ) -> list[GrownPaths]:
        """:meth:`feed_pairs`, with the levels of each slot's ``paths`` fed besides where that is one call. Tell
        :meth:`keep_grown` which of them were asked for.
        """
        rows = [
            RowsToCommit(slot, self.length(slot), new, features_NM)
            for slot, new, features_NM in zip(slots, tokens, features, strict=True)
        ]
        grown = self._grow_paths(rows, paths)
        if grown is None:
            return [GrownPaths(root) for root in self.feed_pairs(slots, tokens, features)]
        self._keep(slots, tokens)
        for slot, own in zip(slots, grown, strict=True):
            assert own.state_XM is not None
            self._states_TM[slot] = own.state_XM
        return grown

    def keep_grown(self, slot: int, tree: TreeBuilder, nodes: int) -> None:
        self._states_TM[slot] = self._states_TM[slot][: 1 + nodes]

    def last_features(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Commit each slot's pairs, features [N, M], and return what its last one would feed its children [1, M]."""
        self._feed_roots(slots, tokens, features, "none")
        return [self._states_TM[slot] for slot in slots]

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        """Feed each tree's ``new_nodes`` youngest nodes; return their logits. Nothing is committed."""
        requests = [
            RequestRows.growing(slot, self.length(slot), tree.token, tree.depth, *tree.intervals(), new)
            for slot, tree, new in zip(slots, trees, new_nodes, strict=True)
        ]
        features = [
            self._states_TM[slot][numbers_on(self.head.device, tree.parent[-new:])]
            for slot, tree, new in zip(slots, trees, new_nodes, strict=True)
        ]
        outputs = self._run("growing", requests, PassPlan(PLAIN, (FED_LAYER,)), features)
        for slot, output in zip(slots, outputs, strict=True):
            new_KM = self.head.recurrent(output.hidden[FED_LAYER][0])
            self._states_TM[slot] = torch.cat((self._states_TM[slot], new_KM))
        return [self._logits(output) for output in outputs]

    def forget(self, slot: int) -> None:
        """A slot's request has ended, or its tree is not needed any more."""
        self._states_TM.pop(slot, None)

    def _feed_roots(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[torch.Tensor],
        logits: LogitRows,
    ) -> list[PassOutput]:
        outputs = self._feed(slots, tokens, features, PassPlan(PLAIN, (FED_LAYER,), logits))
        for slot, output in zip(slots, outputs, strict=True):
            self._states_TM[slot] = self.head.recurrent(output.hidden[FED_LAYER][0, -1:])
        return outputs

    def _feed(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[torch.Tensor],
        plan: PassPlan,
    ) -> list[PassOutput]:
        outputs = self._run("chain", self._rows(slots, tokens), plan, features)
        self._keep(slots, tokens)
        return outputs
