"""What drafters with a model share: the trees of all their requests grow together, a level of each in one pass.

Legend: K nodes of a level, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from spec_sdk.contracts import Budget, Drafter, Growing, Growth, Request
from spec_sdk.model.models import Models, align_vocabulary
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder

GROWTHS = (
    "beam, the width best paths of every level; dynamic, the max_nodes best paths of all lengths; static, widths; "
    "auto: beam, or, where children are drawn, width paths that part at the root"
)


class GrowingSession(Protocol):
    """What a tree grows in: a session of a draft model or of a draft head."""

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[torch.Tensor]:
        """Feed each tree's ``new_nodes`` youngest nodes; return their logits [K, V]."""


class GrowingDrafter(Drafter):
    """Feeds what was committed, then lets a growth expand the trees. Its config has ``growth``, a part.

    A subclass sets ``session`` and says what a root's logits are.
    """

    session: GrowingSession

    def __init__(self, config: Any, models: Models) -> None:
        super().__init__(config, models)
        self.growth: Growth = Registry.discover().part("growth", config.growth)
        self.branches = self.growth.branches
        self.vocabulary = models.target.executor.vocabulary
        self._drafts: dict[int, Draft] = {}

    @abstractmethod
    def room(self, request: Request) -> int:
        """Most levels that may be drafted behind the request's tokens: what the model's context leaves."""

    @abstractmethod
    def root_logits(self, requests: Sequence[Request]) -> list[torch.Tensor]:
        """Feed what each request has committed since it was last asked, and return the logits [V] after its last token.

        Called for requests that have room.
        """

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        depths = [min(budget.depth, self.room(request)) for request, budget in zip(requests, budgets, strict=True)]
        able = [i for i, depth in enumerate(depths) if depth >= 1]
        drafts: dict[int, Draft] = {}
        for i, logits_V in zip(able, self.root_logits([requests[i] for i in able]) if able else [], strict=True):
            request, tree = requests[i], TreeBuilder(requests[i].pending_token, budgets[i].nodes)
            root_logits_V = align_vocabulary(logits_V, self.vocabulary)
            root_logits_V = request.process_logits(root_logits_V[None], [()])[0]
            growing = self.growth.grow(tree, root_logits_V, depths[i], request, self.name)
            self._drafts[request.slot] = drafts[i] = Draft(request, tree, growing)
        asking = [draft for draft in drafts.values() if draft.advance(None)]
        while asking:
            # a level of every tree in one pass
            slots, trees = [draft.request.slot for draft in asking], [draft.tree for draft in asking]
            levels = self.session.grow(slots, trees, [draft.asked for draft in asking])
            asking = [
                draft
                for draft, logits_KV in zip(asking, levels, strict=True)
                if draft.advance(align_vocabulary(logits_KV, self.vocabulary))
            ]
        return [
            drafts[i].closed if i in drafts else TokenTree.root_only(request.pending_token)
            for i, request in enumerate(requests)
        ]

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._drafts.pop(request.slot, None)


class Draft:
    """One request's tree while it grows, and until it is known what of it was accepted."""

    def __init__(self, request: Request, tree: TreeBuilder, growing: Growing) -> None:
        self.request = request
        self.tree = tree
        self.asked = 0
        self.closed: TokenTree
        self._growing = growing
        self._fed = 1

    def advance(self, logits_KV: torch.Tensor | None) -> bool:
        """Go on with the logits that were asked for; whether more are asked for. If not, the tree is closed."""
        try:
            if logits_KV is None:
                self.asked = next(self._growing)
            else:
                self._fed = self.tree.size
                self.asked = self._growing.send(self._penalised(logits_KV))
        except StopIteration as done:
            self.closed = done.value
            return False
        return True

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

    def _penalised(self, logits_KV: torch.Tensor) -> torch.Tensor:
        """Penalty and constraint on the logits of the tree's youngest nodes, each with the tokens of its own path."""
        request, tree = self.request, self.tree
        if not request.changes_logits:
            return logits_KV
        paths = []
        for node in range(tree.size - logits_KV.shape[0], tree.size):
            path = []
            while node:
                path.append(tree.token[node])
                node = tree.parent[node]
            paths.append(path[::-1])
        return request.process_logits(logits_KV, paths)
