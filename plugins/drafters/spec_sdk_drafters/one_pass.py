"""What drafters share whose heads guess several positions in one pass.

Legend: R requests, P positions ahead, C candidates, M model dim, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from spec_sdk.contracts import Budget, Request, option
from spec_sdk.model.draft_heads.markov import ConfidenceHead
from spec_sdk.ops.host_reads import read
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.feature_drafter import FeatureDrafter, FeatureHead
from spec_sdk_drafters.position_tree import likeliest, most_probable_tree, positions_of


@dataclass
class OnePassConfig:
    """Options that all of them have."""

    checkpoint: str | None = option(
        None,
        "the head: a directory, or a Hugging Face hub id",
        means={None: "the one that an installed package has for the target"},
    )
    target_layers: list[int] | None = option(
        None,
        "the target layers that it reads, 0 the embedding, i what leaves the i-th layer",
        minimum=0,
        means={None: "those that its files mean"},
    )
    context: int | None = option(
        None, "longest text in tokens to draft for", minimum=2, means={None: "the head's max_position_embeddings"}
    )
    candidates: int = option(10, "most tokens tried behind one node", minimum=1)
    max_nodes: int = option(63, "most nodes of the tree, the root not counted", minimum=1)
    min_probability: float = option(
        0.01, "least probability of a path", minimum=0.0, maximum=1.0, means={0.0: "none is left out"}
    )


class OnePassHead(FeatureHead, Protocol):
    """What guesses. ``confidence``: how probably a position's guess is accepted, where the head says it."""

    confidence: ConfidenceHead | None

    def block_logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., V] of what a pass returned."""


class OnePassDrafter(FeatureDrafter):
    """Drafts the tree of the most probable paths through what a head guesses in one pass.

    What may follow is the same behind every node of a depth, unless a subclass says otherwise. Tokens are chosen, not
    drawn, so any verifier stays lossless.
    """

    Config = OnePassConfig
    config: OnePassConfig
    head: OnePassHead
    branches = True

    @abstractmethod
    def returned(self, requests: Sequence[Request], positions: int) -> torch.Tensor:
        """Feed what was committed, and return what the pass gives for positions ahead: [R, P, M]."""

    @torch.no_grad()
    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        depths = [min(budget.depth, self.room(request)) for request, budget in zip(requests, budgets, strict=True)]
        able = [i for i, depth in enumerate(depths) if depth >= 1]
        trees = [TokenTree.root_only(request.pending_token) for request in requests]
        if not able:
            return trees
        most = 1 + self.config.max_nodes
        granted = [replace(budgets[i], depth=depths[i], nodes=min(budgets[i].nodes, most)) for i in able]
        for i, builder in zip(able, self._trees([requests[i] for i in able], granted), strict=True):
            trees[i] = builder.build().tree
        return trees

    def _trees(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TreeBuilder]:
        rows_RPM = self.returned(requests, max(budget.depth for budget in budgets))
        top: list[torch.Tensor] = []
        for request, logits_PV in zip(requests, self.head.block_logits(rows_RPM), strict=True):
            top += likeliest(request, logits_PV, self.config.candidates)
        if self.head.confidence is not None:
            sure_RP1 = self.head.confidence(rows_RPM.flatten(0, 1)).view(len(requests), -1, 1)
            top[1::2] = [probability_PC * sure_P1 for probability_PC, sure_P1 in zip(top[1::2], sure_RP1, strict=True)]
        top = read(*top)
        least, roots = self.config.min_probability, [request.pending_token for request in requests]
        return [
            most_probable_tree(root, positions_of(token_PC, probability_PC), budget, self.name, least)
            for root, budget, token_PC, probability_PC in zip(roots, budgets, top[::2], top[1::2], strict=True)
        ]
