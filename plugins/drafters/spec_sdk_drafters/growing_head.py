"""What drafters share whose heads are fed a pair for every node of a tree that grows.

The pair number t is the token t + 1 of the text, and the feature of position t.

Legend: N pairs of a token and a feature, M model dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from spec_sdk.contracts import DraftLogits, Request
from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.ops.grown_paths import GrownPaths, ProbablePaths
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.feature_drafter import FeatureDrafter, FeatureSession
from spec_sdk_drafters.growing_drafter import GrowingDrafter, GrowingSession


class PairSession(FeatureSession, GrowingSession, Protocol):
    """A head at work, whose text begins with the request's second token."""

    def feed_pairs(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> list[DraftLogits]:
        """Commit each slot's pairs, features [N, M], and return the logits after its last one, a tree's root: K = 1."""


class GrowingHeadDrafter(FeatureDrafter, GrowingDrafter):
    """Feeds a head the pairs of what was committed, then lets the growth expand the trees.

    A node's pair in the tree has what the head itself makes of its parent. Only pairs of the target's own states are
    kept, so those of accepted tokens are fed anew in the next round.
    """

    session: PairSession

    def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[DraftLogits]]:
        return functools.partial(self.session.feed_pairs, *self._take_unfed(requests))


class OneLayerHeadDrafter(GrowingHeadDrafter):
    """Of heads of one layer, which are fed the levels of a tree with its root where that is one call."""

    head: DraftHead
    session: DraftHeadSession

    @property
    def grows_paths(self) -> bool:
        # a session of another kind need not know of that
        return getattr(self.session, "grows_paths", False)

    def grown_paths(self, requests: Sequence[Request], paths: Sequence[ProbablePaths]) -> list[GrownPaths] | None:
        if not all(self._unfed.has_any(request.slot) for request in requests):
            return None
        return self.session.feed_pairs_and_grow(*self._take_unfed(requests), paths)

    def keep_grown(self, request: Request, tree: TreeBuilder, nodes: int) -> None:
        self.session.keep_grown(request.slot, tree, nodes)
