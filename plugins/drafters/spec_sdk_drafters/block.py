"""Drafting a block of tokens in one pass over the target's hidden states: DFlash and DSpark.

Legend: R requests, B rows of a block, P positions ahead, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Budget, Request, option
from spec_sdk.model.draft_heads.block_head import BlockHead
from spec_sdk.model.draft_heads.block_session import BlockSession
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.loading import BLOCK_HEADS
from spec_sdk.model.models import Models
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.level_tree import LevelTree
from spec_sdk_drafters.markov_levels import grow_levels
from spec_sdk_drafters.one_pass import OnePassConfig, OnePassDrafter


@dataclass
class BlockConfig(OnePassConfig):
    """Options of drafting with a head that drafts a block."""

    width: int = option(8, "nodes of a level that are continued, where guesses depend on the token before", minimum=1)


class BlockDrafter(OnePassDrafter):
    """Drafts the tree of the most probable paths through a block that a head guesses in one pass (DFlash, DSpark).

    The head sees the target's states of all committed positions, and a block of the pending token and mask tokens. Its
    cache keeps the context alone; what the target found at accepted tokens is fed in the next round. With a Markov head
    a slot's guesses depend on the token before, and the tree is opened level by level; without one they are the same
    behind every node of a depth. A confidence head lowers the probability of all that follows a node, so that less is
    drafted where it is unsure.
    """

    name = "block"
    Config = BlockConfig
    config: BlockConfig
    head: BlockHead
    session: BlockSession

    def __init__(self, config: BlockConfig, models: Models) -> None:
        super().__init__(config, models)
        layers = None if config.target_layers is None else tuple(config.target_layers)
        model = models.draft_head(config.checkpoint, BLOCK_HEADS, HeadChoices("auto", layers, config.context))
        self.draft_name = model.name
        self._use(model.head.head, BlockSession(model.head))

    def room(self, request: Request) -> int:
        """All that a block drafts, where a whole one has room. The first token needs no context."""
        form = self.head.form
        return form.drafts if len(request.tokens) - 1 + form.size <= self.session.context else 0

    def returned(self, requests: Sequence[Request], positions: int) -> torch.Tensor:
        return self._predicting(self._blocks(requests), positions)

    def _trees(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TreeBuilder]:
        if self.head.markov is None:
            return super()._trees(requests, budgets)
        width, least = self.config.width, self.config.min_probability
        trees = [
            LevelTree(request.pending_token, budget, width, least)
            for request, budget in zip(requests, budgets, strict=True)
        ]
        normed_RBM = self._blocks(requests)
        rows_RPM = self._predicting(normed_RBM, max(budget.depth for budget in budgets))
        grow_levels(self.head, requests, trees, normed_RBM, rows_RPM, self.config.candidates)
        return [tree.build(self.name) for tree in trees]

    def _blocks(self, requests: Sequence[Request]) -> torch.Tensor:
        """What whole blocks return behind what was committed [R, B, M]."""
        unfed = self._take_unfed(requests)
        if unfed.slots:
            self.session.feed_features(*unfed)
        return self.session.blocks([r.slot for r in requests], [r.pending_token for r in requests])

    def _predicting(self, normed_RBM: torch.Tensor, positions: int) -> torch.Tensor:
        """What the slots returned that predict a token, as far as somebody drafts: [R, P, M]."""
        first = 0 if self.head.form.from_anchor else 1
        return normed_RBM[:, first : first + positions]
