"""Trees that grow together: a level of every request's tree in one pass of whichever model drafts.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from spec_sdk.contracts import Budget, DraftLogits, Growing, Request
from spec_sdk.errors import PluginFault, UnusableLogits, of_request
from spec_sdk.ops.grown_paths import GrownLevel
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.priced_tree import worth_its_price


class GrowingDraft:
    """One request's tree while it grows, and until it is known what of it was accepted.

    ``asked``: how many of the tree's youngest nodes are to be fed next. ``levels``: how many were fed. ``closed``: the
    tree, when it has grown.
    By the prices of ``budget`` a level that is worth less than it costs is not fed, and nodes that are not worth their
    own are left out of the tree.
    """

    def __init__(
        self,
        request: Request,
        tree: TreeBuilder,
        growing: Growing,
        root: DraftLogits,
        vocabulary: int,
        budget: Budget,
    ) -> None:
        self.request = request
        self.level_cost = budget.level_cost
        self.tree = tree
        self.asked = 0
        self.levels = 0
        self.closed: TokenTree
        self._growing = growing
        self._latest = root
        self._node_costs = budget.node_costs
        self._fed = 1
        self._vocabulary = vocabulary
        self._reached = [1.0]

    def advance(self, logits: DraftLogits | None) -> bool:
        """Go on with the logits that were asked for; whether more are asked for. If not, the tree is closed.

        Raises RequestError: what one tree fails with, such as logits that are not usable, is no fault of those beside.
        """
        return of_request(self.request.id, self._advance, logits)

    def end(self) -> bool:
        """Feed nothing of what is asked for, as if it were not worth its price; whether more is asked for nonetheless.
        If not, the tree is closed.
        """
        return of_request(self.request.id, self._advance, DraftLogits.over_all(torch.empty(0, self._vocabulary)))

    def _advance(self, logits: DraftLogits | None) -> bool:
        try:
            if logits is None:
                self.asked = next(self._growing)
            elif len(logits):
                self.levels += 1
                self._fed, self._latest = self.tree.size, self._penalised(logits)
                self.asked = self._growing.send(self._latest)
            else:
                self.asked = self._growing.send(logits)
            if self.asked < 1:
                raise self._asked_for_nothing()
            if (logits is None or len(logits)) and self._reach() < self.level_cost:
                return self.end()
        except StopIteration as done:
            self.closed = worth_its_price(done.value, self._node_costs)
            return False
        return True

    def _asked_for_nothing(self) -> Exception:
        """Why a growth goes on without a node: of logits that are NaN no child is the most probable."""
        unusable_K = ~self._latest.full_KV.amax(-1).isfinite()
        if unusable_K.any():
            return UnusableLogits(int(unusable_K.nonzero()[0]))
        return PluginFault("its growth asked for the logits of no node")

    def asks_for(self, level: GrownLevel) -> bool:
        """Whether the nodes that are to be fed next are those of a level that was."""
        tree, asked = self.tree, self.asked
        return (
            asked == len(level.token_K)
            and tree.token[-asked:] == list(level.token_K)
            and tree.parent[-asked:] == list(level.parent_K)
        )

    def _reach(self) -> float:
        """How probably a node that is to be fed is reached: a further level gives no more tokens than that.

        Infinite where the growth does not note probabilities: what is drawn never ends for what it is.
        """
        if not self.level_cost:
            return math.inf
        tree, reached = self.tree, self._reached
        for node in range(len(reached), tree.size):
            draws = tree.draws[tree.parent[node]]
            chance = next(draw.probability for draw in draws if draw.node == node)
            if chance is None:
                return math.inf
            reached.append(reached[tree.parent[node]] * chance)
        return sum(reached[-self.asked :])

    def accepted(self, tokens: Sequence[int]) -> list[int]:
        """The rows of the fed nodes that ``tokens``, which follow the root, lead through."""
        tree = self.tree
        children = {(tree.parent[i], tree.token[i]): i for i in range(1, self._fed)}
        node, rows = 0, list[int]()
        for token in tokens:
            child = children.get((node, token))
            if child is None:
                break
            node = child
            rows.append(child - 1)
        return rows

    def _penalised(self, logits: DraftLogits) -> DraftLogits:
        """Penalty and constraint on the logits of the tree's youngest nodes, each with the tokens of its own path."""
        request, tree = self.request, self.tree
        if not request.changes_logits:
            return request.process_draft(logits, ())
        paths = []
        for node in range(tree.size - len(logits), tree.size):
            path = []
            while node:
                path.append(tree.token[node])
                node = tree.parent[node]
            paths.append(path[::-1])
        return request.process_draft(logits, paths)


def advanced(drafts: Sequence[GrowingDraft], levels: Sequence[DraftLogits | None]) -> list[GrowingDraft]:
    """Let each tree go on with the logits that it asked for, or None to begin with: those that ask for more."""
    return [draft for draft, logits in zip(drafts, levels, strict=True) if draft.advance(logits)]
