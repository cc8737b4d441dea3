"""Drafting with a smaller model.

Legend: M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Budget, Drafter, Request
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.models import Models, align_vocabulary
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.tree_growth import grow_by_sampling, grow_by_top_k

CHILDREN = ("auto", "top_k", "sampled")


@dataclass
class DraftModelConfig:
    """Options of drafting with a model.

    ``draft``: the model to draft with; null means ``model.draft`` of the run.
    ``width``: most nodes per level of the tree; 1 drafts a chain.
    ``children``: ``top_k`` keeps the most probable paths; ``sampled`` draws from the draft model, as speculative
    sampling does; ``auto`` samples chains when the temperature is not 0, and takes the top k otherwise.
    """

    draft: str | None = None
    width: int = 1
    children: str = "auto"


class DraftModelDrafter(Drafter):
    """Drafts a chain or tree with a draft model, whose cache keeps the K and V of accepted tokens."""

    name = "draft_model"
    Config = DraftModelConfig
    config: DraftModelConfig

    drops_drafted_kv = False

    def __init__(self, config: DraftModelConfig, models: Models) -> None:
        if config.width < 1:
            raise UserError(f"drafter.width: {config.width} must be 1 (a chain) or more")
        if config.children not in CHILDREN:
            raise UserError(
                f"drafter.children: unknown value {config.children!r}{did_you_mean(config.children, CHILDREN)}"
            )
        super().__init__(config, models)
        model = models.draft(config.draft)
        self.draft_name = model.name
        self.session = models.session(model)
        self.vocabulary = models.target.decoder.head_VM.shape[0]
        self._tree: TreeBuilder | None = None
        self._fed_nodes = 0

    @property
    def growth_runner(self) -> BlockRunner:
        """How the draft model runs while the tree grows; committed tokens are always fed in a plain pass."""
        return SequentialRunner()

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        length, context = len(request.tokens), self.session.context
        if length > context:
            raise UserError(f"model.draft: the prompt has {length} tokens, the draft model's context holds {context}")
        self.session.reset()
        self.session.cache.reserve(min(length + request.max_new_tokens, context))
        self._tree = None
        self.session.prefill(request.tokens[:-1])

    def propose(self, request: Request, budget: Budget) -> TokenTree:
        self._keep_accepted(request.tokens)
        depth = min(budget.depth, self.session.context - len(request.tokens))
        if depth < 1:
            return TokenTree.root_only(request.pending_token)
        unfed = request.tokens[self.session.length :]
        root_logits_V = align_vocabulary(self.session.feed(unfed), self.vocabulary)
        tree = TreeBuilder(request.pending_token)
        self._tree, self._fed_nodes = tree, 1
        if self._samples(request):
            grow_by_sampling(tree, root_logits_V, depth, self.config.width, self._score, request, self.name)
        else:
            grow_by_top_k(tree, root_logits_V, depth, self.config.width, self._score, self.name)
        return tree.build().tree

    def _score(self, youngest: int) -> torch.Tensor:
        assert self._tree is not None
        logits_KV = self.session.grow(self._tree, youngest, self.growth_runner)
        self._fed_nodes = self._tree.size
        return align_vocabulary(logits_KV, self.vocabulary)

    def _samples(self, request: Request) -> bool:
        if self.config.children == "auto":
            return self.config.width == 1 and not request.sampler.greedy
        return self.config.children == "sampled"

    def _keep_accepted(self, tokens: list[int]) -> None:
        """Commit the K and V of those drafted tokens that were accepted, as far as the draft model was fed them."""
        tree, self._tree = self._tree, None
        if tree is None or self.drops_drafted_kv:
            return
        children = {(tree.parent[i], tree.token[i]): i for i in range(1, self._fed_nodes)}
        node, slots = 0, []
        for token in tokens[self.session.length : -1]:
            child = children.get((node, token))
            if child is None:
                break
            node = child
            slots.append(child - 1)
        self.session.commit(slots)
