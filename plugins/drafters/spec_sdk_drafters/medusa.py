"""Drafting with Medusa heads, each of which predicts one position ahead from the target's last hidden state.

Legend: P positions ahead, R requests, C candidates, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.contracts import Budget, DraftLogits, Hidden, Request, option
from spec_sdk.model.draft_heads.loading import MEDUSA_HEADS
from spec_sdk.model.models import Models
from spec_sdk.ops.host_reads import read
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.noting_drafter import NotingDrafter
from spec_sdk_drafters.position_tree import likeliest, most_probable_tree, positions_of


@dataclass
class MedusaConfig:
    """Options of drafting with Medusa heads."""

    checkpoint: str | None = option(
        None,
        "the heads: a directory, or a Hugging Face hub id",
        means={None: "those that an installed package has for the target"},
    )
    candidates: int = option(10, "most tokens of one position that are tried", minimum=1)
    max_nodes: int = option(63, "most nodes of the tree, the root not counted", minimum=1)


class MedusaDrafter(NotingDrafter):
    """Drafts the tree of the most probable guesses of Medusa heads, one head per position ahead.

    The heads do not see each other's tokens: what may follow at a depth is the same after every node, and a path's
    probability is taken to be the product of its tokens'. Tokens are chosen, not drawn, so any verifier stays lossless.
    """

    name = "medusa"
    Config = MedusaConfig
    config: MedusaConfig
    branches = True
    catches_up = False

    def __init__(self, config: MedusaConfig, models: Models) -> None:
        super().__init__(config, models)
        model = models.draft_head(config.checkpoint, MEDUSA_HEADS)
        self.draft_name, self.heads = model.name, model.head
        self.taps = self.heads.taps
        self.vocabulary = models.target.executor.vocabulary
        self._last_1M: dict[int, torch.Tensor] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        for request, hidden in zip(requests, prompt_hidden, strict=True):
            self._last_1M.pop(request.slot, None)
            self._note(request, hidden)

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._last_1M.pop(request.slot, None)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        # the first token has no state before the target has seen it
        able = [i for i, request in enumerate(requests) if request.slot in self._last_1M]
        trees = [TokenTree.root_only(request.pending_token) for request in requests]
        if not able:
            return trees
        depth = min(self.heads.positions, max(budgets[i].depth for i in able))
        states_RM = torch.cat([self._last_1M[requests[i].slot] for i in able])
        logits = self.heads.logits({self.taps[0]: states_RM}, depth)
        top: list[torch.Tensor] = []
        for row, i in enumerate(able):
            logits_PV = torch.stack([logits_RV[row] for logits_RV in logits])
            logits_PV = DraftLogits.over_all(logits_PV).within(self.vocabulary).full_KV
            top += likeliest(requests[i], logits_PV, self.config.candidates)
        top = read(*top)
        for i, token_PC, probability_PC in zip(able, top[::2], top[1::2], strict=True):
            positions = positions_of(token_PC, probability_PC)
            budget = replace(budgets[i], nodes=min(budgets[i].nodes, 1 + self.config.max_nodes))
            trees[i] = most_probable_tree(requests[i].pending_token, positions, budget, self.name).build().tree
        return trees

    def _note(self, request: Request, hidden: Hidden) -> None:
        """Keep the last of some states, layer → [N, M], in memory of its own."""
        if len(hidden[self.taps[0]]):
            self._last_1M[request.slot] = hidden[self.taps[0]][-1:].clone()
