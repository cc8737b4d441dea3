"""Hydra heads at work on several requests: the state that each request's tree is drafted from.

Legend: N pairs, K nodes of a level, P tokens of a path, M model dim of the target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.context_vocabulary import ContextVocabulary
from spec_sdk.model.draft_heads.hydra import HydraHeads
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.ops import DraftLogits
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.tree import TreeBuilder


class HydraSession:
    """Feeds pairs of a token and a state, as :class:`DraftHeadSession` does; its text begins with the second token.

    Of a plain Hydra only the last pair counts. Hydra++ keeps what its prefix layer saw of all of them in a cache.
    """

    token_offset = DraftHeadSession.token_offset

    def __init__(self, heads: HydraHeads) -> None:
        self.heads = heads
        self.context_vocabulary: ContextVocabulary | None = None
        """The heads have rows of all tokens."""
        self._prefix = None if heads.prefix is None else DraftHeadSession(heads.prefix)
        self._length: dict[int, int] = {}
        self._state_1M: dict[int, torch.Tensor] = {}

    @property
    def context(self) -> int:
        """Most pairs that it can hold."""
        return self.heads.context

    def length(self, slot: int) -> int:
        """Committed pairs of a slot."""
        return self._length.get(slot, 0)

    def open(self, slot: int, tokens: Sequence[int], keep: bool = False) -> int:
        """Give ``slot`` to a new request. Nothing is kept of the one before it: always 0."""
        self.forget(slot)
        return 0 if self._prefix is None else self._prefix.open(slot, (), keep=False)

    def forget(self, slot: int) -> None:
        """A slot's request has ended."""
        self._length.pop(slot, None)
        self._state_1M.pop(slot, None)
        if self._prefix is not None:
            self._prefix.forget(slot)

    def feed_features(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> None:
        """Commit each slot's pairs, features [N, M], behind which nothing is drafted."""
        if self._prefix is not None:
            self._prefix.feed_features(slots, tokens, features)
        for slot, new in zip(slots, tokens, strict=True):
            self._length[slot] = self.length(slot) + len(new)

    def feed_pairs(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> list[DraftLogits]:
        """Commit each slot's pairs, features [N, M], and return the logits after its last one, a tree's root: K = 1."""
        if self._prefix is None:
            states = [features_NM[-1:].clone() for features_NM in features]
        else:
            states = self._prefix.last_features(slots, tokens, features)
        for slot, new, state_1M in zip(slots, tokens, states, strict=True):
            self._length[slot] = self.length(slot) + len(new)
            self._state_1M[slot] = state_1M
        logits_BV = self._logits(slots, [[new[-1]] for new in tokens])
        return [DraftLogits.over_all(logits_1V) for logits_1V in logits_BV[:, None]]

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        """The logits after each tree's ``new_nodes`` youngest nodes. Raises ValueError where no head is left."""
        of_row, paths = list[int](), list[list[int]]()
        for slot, tree, new in zip(slots, trees, new_nodes, strict=True):
            of_row += [slot] * new
            paths += [_path(tree, node) for node in range(tree.size - new, tree.size)]
        by_depth: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            by_depth.setdefault(len(path), []).append(row)
        logits: dict[int, torch.Tensor] = {}
        for rows in by_depth.values():
            logits.update(zip(rows, self._logits([of_row[i] for i in rows], [paths[i] for i in rows]), strict=True))
        logits_KV = torch.stack([logits[row] for row in range(len(paths))])
        return [DraftLogits.over_all(own_KV) for own_KV in logits_KV.split_with_sizes(list(new_nodes))]

    @torch.no_grad()
    def _logits(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits [K, V] after paths of one length, each in the tree of its slot."""
        state_KM = torch.cat([self._state_1M[slot] for slot in slots])
        return self.heads.logits(state_KM, numbers_on(state_KM.device, paths))


def _path(tree: TreeBuilder, node: int) -> list[int]:
    """The tokens from the root to a node, both included."""
    tokens = [tree.token[node]]
    while node:
        node = tree.parent[node]
        tokens.append(tree.token[node])
    return tokens[::-1]
