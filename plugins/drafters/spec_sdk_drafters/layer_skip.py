"""Self-speculation: the target drafts, some of its layers left out, over its own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import BlockRunner, Budget, Drafter, Growth, Request, option
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.model.session import Session
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.draft_model import RUNNERS
from spec_sdk_drafters.growing_draft import GrowingDraft, advanced
from spec_sdk_drafters.growing_drafter import GROWTHS


@dataclass
class LayerSkipDrafterConfig:
    """Options of drafting with the target itself; those of the chosen growth and runner stand beside them."""

    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")
    runner: Any = option("layer_skip", f"how the target runs while the tree grows: {RUNNERS}")


class LayerSkipDrafter(Drafter):
    """Drafts with the target itself, some layers left out, over the target's own cache (Draft & Verify, LayerSkip).

    A drafting pass reads the K and V of committed tokens, which are the target's, and writes those of drafted tokens
    behind them. The target's pass over the tree writes all of these anew before it reads them, so nothing that drafting
    left is ever seen by it. There are no weights, no cache and no prefill beside the target's, and between cycles
    nothing is kept.
    """

    name = "layer_skip"
    Config = LayerSkipDrafterConfig
    config: LayerSkipDrafterConfig
    parts = {"growth": "growth", "runner": "runner"}
    catches_up = False
    drafts_ahead = False

    def __init__(self, config: LayerSkipDrafterConfig, models: Models) -> None:
        super().__init__(config, models)
        ranks = models.ranks
        if models.draft_ranks(spreads=True).size < ranks.size:
            raise UserError(
                f"backend.groups.draft: drafter '{self.name}' drafts with the target, which all {ranks.size} ranks "
                "hold; leave it out"
            )
        self.every_rank = ranks.size > 1
        registry = Registry.discover()
        self.growth: Growth = registry.part("growth", config.growth)
        self.runner: BlockRunner = registry.part("runner", config.runner)
        target = models.target
        self.runner.prepare(target.executor.layers)
        self.runner.share_kv(target.executor.kv_sources)
        self.branches = self.growth.branches
        self.draft_name = f"{target.name} itself, {described(self.runner, target.executor.layers)}"
        # tells what a level costs, and the other ranks which runner is meant; its own cache stays empty
        self.draft_session = models.session(target, self.runner, spread=self.every_rank)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        target: Session = requests[0].target

        trees = [
            TreeBuilder(request.pending_token, budget.nodes) for request, budget in zip(requests, budgets, strict=True)
        ]
        roots = target.draft([request.slot for request in requests], trees, [1] * len(trees), self.runner)
        drafts = []
        for request, tree, budget, logits in zip(requests, trees, budgets, roots, strict=True):
            root = request.process_draft(logits, [()])
            growing = self.growth.growing(tree, root, budget.depth, request, self.name)
            drafts.append(GrowingDraft(request, tree, growing, root, root.vocabulary, budget))
        asking = advanced(drafts, [None] * len(drafts))
        while asking:
            slots, grown = [draft.request.slot for draft in asking], [draft.tree for draft in asking]
            asking = advanced(asking, target.draft(slots, grown, [draft.asked for draft in asking], self.runner))
        return [draft.closed for draft in drafts]


def described(runner: BlockRunner, layers: int) -> str:
    """How the target runs while it drafts, for reports."""
    kept = runner.declaration().get("layers")
    return f"runner {runner.name}" if kept is None else f"{len(kept)} of {layers} layers"
