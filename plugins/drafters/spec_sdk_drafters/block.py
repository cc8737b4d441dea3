"""Drafting a block of tokens in one pass over the target's hidden states: DFlash and DSpark.

Legend: R requests, B rows of a block, P positions ahead, K open nodes, C candidates, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.contracts import Budget, Hidden, Request, option
from spec_sdk.model.draft_heads.block_session import BlockSession
from spec_sdk.model.draft_heads.loading import HeadChoices
from spec_sdk.model.models import Models
from spec_sdk.model.session import PREFILL_CHUNK
from spec_sdk.ops.host_reads import read
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.level_tree import LevelTree
from spec_sdk_drafters.markov_levels import grow_levels
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.position_tree import likeliest, most_probable_tree, positions_of
from spec_sdk_drafters.unfed_states import UnfedStates


@dataclass
class BlockConfig:
    """Options of drafting with a head that drafts a block."""

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
    width: int = option(8, "nodes of a level that are continued, where guesses depend on the token before", minimum=1)
    max_nodes: int = option(63, "most nodes of the tree, the root not counted", minimum=1)
    min_probability: float = option(
        0.01, "least probability of a path", minimum=0.0, maximum=1.0, means={0.0: "none is left out"}
    )


class BlockDrafter(NotingDrafter):
    """Drafts the tree of the most probable paths through a block that a head guesses in one pass (DFlash, DSpark).

    The head sees the target's states of all committed positions, and a block of the pending token and mask tokens. Its
    cache keeps the context alone; what the target found at accepted tokens is fed in the next round. With a Markov head
    a slot's guesses depend on the token before, and the tree is opened level by level; without one they are the same
    behind every node of a depth. A confidence head lowers the probability of all that follows a node, so that less is
    drafted where it is unsure. Tokens are chosen, not drawn, so any verifier stays lossless.
    """

    name = "block"
    Config = BlockConfig
    config: BlockConfig
    branches = True

    def __init__(self, config: BlockConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        model = models.block_head(config.checkpoint, HeadChoices("auto", layers, config.context))
        self.draft_name, self.head = model.name, model.executor.head
        self.taps = tuple(sorted(self.head.taps))
        self.session = BlockSession(model.executor)
        self._unfed = UnfedStates(self.taps)

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self.session.open(request.slot, (), keep=False)
            self._unfed.open(request.slot)
            self._note(request, hidden)
            self._feed_all_but(0, request)

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._unfed.drop(request.slot)

    @torch.no_grad()
    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        able = [
            i for i, (r, budget) in enumerate(zip(requests, budgets, strict=True)) if budget.depth and self._fits(r)
        ]
        trees = [TokenTree.root_only(request.pending_token) for request in requests]
        if not able:
            return trees
        asked = [requests[i] for i in able]
        self._feed(asked)
        granted = [
            replace(
                budgets[i],
                depth=min(budgets[i].depth, self.head.form.drafts),
                nodes=min(budgets[i].nodes, 1 + self.config.max_nodes),
            )
            for i in able
        ]
        normed_RBM = self.session.blocks([r.slot for r in asked], [r.pending_token for r in asked])
        builders = (self._positions if self.head.markov is None else self._levels)(asked, granted, normed_RBM)
        for i, builder in zip(able, builders, strict=True):
            trees[i] = builder.build().tree
        return trees

    def _positions(
        self, requests: Sequence[Request], budgets: Sequence[Budget], normed_RBM: torch.Tensor
    ) -> list[TreeBuilder]:
        """Trees of guesses that are the same behind every node of a depth."""
        rows_RPM = self._rows(normed_RBM, budgets)
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

    def _levels(
        self, requests: Sequence[Request], budgets: Sequence[Budget], normed_RBM: torch.Tensor
    ) -> list[TreeBuilder]:
        """Trees of guesses that depend on the tokens before them."""
        width, least = self.config.width, self.config.min_probability
        trees = [
            LevelTree(request.pending_token, budget, width, least)
            for request, budget in zip(requests, budgets, strict=True)
        ]
        grow_levels(self.head, requests, trees, normed_RBM, self._rows(normed_RBM, budgets), self.config.candidates)
        return [tree.build(self.name) for tree in trees]

    def _rows(self, normed_RBM: torch.Tensor, budgets: Sequence[Budget]) -> torch.Tensor:
        """What the slots returned that predict a token, as far as somebody drafts: [R, P, M]."""
        first = 0 if self.head.form.from_anchor else 1
        return normed_RBM[:, first : first + max(budget.depth for budget in budgets)]

    def _fits(self, request: Request) -> bool:
        """Whether a whole block has room behind the request's tokens. The first of them needs no context."""
        return len(request.tokens) - 1 + self.head.form.size <= self.session.context

    def _note(self, request: Request, hidden: Hidden) -> None:
        if len(request.tokens) <= self.session.context:
            self._unfed.note(request.slot, hidden)

    def _feed_all_but(self, last: int, request: Request) -> None:
        slot = request.slot
        for hidden in self._unfed.take_all_but(last, slot):
            features_NM, first = self.head.features(hidden), self.session.length(slot)
            self.session.feed_context([slot], [request.tokens[first : first + len(features_NM)]], [features_NM])

    def _feed(self, requests: Sequence[Request]) -> None:
        """Feed the states of all positions before the pending tokens."""
        for request in requests:
            # those of many plain steps would make one pass too wide
            self._feed_all_but(PREFILL_CHUNK, request)
        unfed = [request for request in requests if self._unfed.has_any(request.slot)]
        if unfed:
            features = [self.head.features(self._unfed.take(request.slot)) for request in unfed]
            tokens = [request.tokens[self.session.length(request.slot) : -1] for request in unfed]
            self.session.feed_context([request.slot for request in unfed], tokens, features)
