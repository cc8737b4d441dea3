"""Drafting with a smaller model.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import BlockRunner, Budget, Drafter, Growth, Hidden, Request, option
from spec_sdk.model.models import Models, align_vocabulary
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.growing_draft import GrowingDraft, grow_together

GROWTHS = (
    "beam, the width best paths of every level; dynamic, the max_nodes best paths of all lengths; static, widths; "
    "auto: beam, or, where children are drawn, width paths that part at the root"
)
RUNNERS = "sequential; layer_parallel, groups of attention layers at once (EasySpec); layer_skip, without some layers"


@dataclass
class DraftModelConfig:
    """Options of drafting with a model; those of the chosen growth and runner stand beside them."""

    draft: str | None = option(None, "the model to draft with", means={None: "model.draft"})
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")
    runner: Any = option("sequential", f"how the draft model runs while the tree grows: {RUNNERS}")


class DraftModelDrafter(Drafter):
    """Drafts a chain or tree with a draft model, whose cache keeps the K and V of accepted tokens.

    K and V that the runner computed roughly are not kept: the accepted tokens and the bonus token are then fed in one
    plain pass, the first of the next round, which leaves precise K and V and gives the first, precise distribution
    (bonus calibration: EasySpec, §3.2).
    """

    name = "draft_model"
    Config = DraftModelConfig
    config: DraftModelConfig
    parts = {"growth": "growth", "runner": "runner"}

    def __init__(self, config: DraftModelConfig, models: Models) -> None:
        super().__init__(config, models)
        registry = Registry.discover()
        self.growth: Growth = registry.part("growth", config.growth)
        self.runner: BlockRunner = registry.part("runner", config.runner)
        model = models.draft(config.draft)
        self.draft_name = model.name
        self.branches = self.growth.branches
        self.runner.prepare(model.executor.layers, models.ranks)
        self.every_rank = self.runner.spreads and models.ranks.size > 1
        self.session = self.draft_session = models.session(model, self.runner, spread=self.every_rank)
        self.vocabulary = models.target.executor.vocabulary
        self._drafts: dict[int, GrowingDraft] = {}

    @property
    def _holds_plain_kv(self) -> bool:
        """Whether all that the cache holds is what plain passes give, so that another request may begin with it."""
        return not self.runner.keeps_kv or self.runner.guarantee == "exact"

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            self._drafts.pop(request.slot, None)
            # past its context the draft model is not used: propose drafts nothing there
            if len(request.tokens) < self.session.context:
                prompt = request.tokens[:-1]
                kept = self.session.open(request.slot, prompt, self._holds_plain_kv, request.encoder_input)
                self.session.prefill(request.slot, prompt[kept:])

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        self._keep_accepted(requests)
        depths = [
            min(budget.depth, self.session.context - len(request.tokens))
            for request, budget in zip(requests, budgets, strict=True)
        ]
        able = [i for i, depth in enumerate(depths) if depth >= 1]
        slots = [requests[i].slot for i in able]
        unfed = [requests[i].tokens[self.session.length(requests[i].slot) :] for i in able]
        drafts: dict[int, GrowingDraft] = {}
        for i, logits_V in zip(able, self.session.feed(slots, unfed) if able else [], strict=True):
            request, tree = requests[i], TreeBuilder(requests[i].pending_token, budgets[i].nodes)
            root_logits_V = align_vocabulary(logits_V, self.vocabulary)
            root_logits_V = request.process_logits(root_logits_V[None], [()])[0]
            growing = self.growth.grow(tree, root_logits_V, depths[i], request, self.name)
            self._drafts[request.slot] = drafts[i] = GrowingDraft(request, tree, growing)
        grow_together(list(drafts.values()), self._feed)
        return [
            drafts[i].closed if i in drafts else TokenTree.root_only(request.pending_token)
            for i, request in enumerate(requests)
        ]

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._drafts.pop(request.slot, None)

    def _feed(self, drafts: Sequence[GrowingDraft]) -> list[torch.Tensor]:
        slots, trees = [draft.request.slot for draft in drafts], [draft.tree for draft in drafts]
        levels = self.session.grow(slots, trees, [draft.asked for draft in drafts])
        return [align_vocabulary(logits_KV, self.vocabulary) for logits_KV in levels]

    def _keep_accepted(self, requests: Sequence[Request]) -> None:
        """Commit the K and V of those drafted tokens that were accepted, as far as the draft model was fed them."""
        slots, paths = [], []
        for request in requests:
            draft = self._drafts.pop(request.slot, None)
            if draft is not None and self.runner.keeps_kv:
                slots.append(request.slot)
                paths.append(draft.accepted(request.tokens[self.session.length(request.slot) : -1]))
        if slots:
            self.session.commit(slots, paths)
