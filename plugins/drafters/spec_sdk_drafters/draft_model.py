"""Drafting with a smaller model.

Legend: M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from spec_sdk.contracts import LARGEST_TREE, Budget, Drafter, Request
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.models import Models, align_vocabulary
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.tree_growth import Children, grow_beam, grow_dynamic, grow_static

GROWTHS = ("auto", "beam", "dynamic", "static")
CHILDREN = ("auto", "top_k", "with_replacement", "without_replacement")


@dataclass
class DraftModelConfig:
    """Options of drafting with a model.

    ``draft``: the model to draft with; null means ``model.draft`` of the run.
    ``growth``: ``beam`` keeps the ``width`` most probable paths on every level; ``dynamic`` feeds as many per level and
    keeps the ``max_nodes`` most probable paths of all lengths; ``static`` gives every node of level d ``widths[d]``
    children; ``auto`` is ``beam`` where children are chosen, and ``width`` drawn paths that part at the root where they
    are drawn.
    ``width``: paths per level; 1 drafts a chain.
    ``max_nodes``: nodes of a dynamic tree, the root not counted.
    ``widths``: children per node, level by level, the last entry for all deeper levels.
    ``children``: ``top_k`` takes the most probable tokens; ``with_replacement`` and ``without_replacement`` draw from
    the draft model; ``auto`` draws without replacement at a temperature above 0 where the growth permits it, and takes
    the top k otherwise. Drawn children are never pruned, so growth ``beam`` and ``dynamic`` do not permit it.
    """

    draft: str | None = None
    growth: str = "auto"
    width: int = 1
    max_nodes: int = 32
    widths: list[int] = field(default_factory=lambda: [2, 2, 1])
    children: str = "auto"


class DraftModelDrafter(Drafter):
    """Drafts a chain or tree with a draft model, whose cache keeps the K and V of accepted tokens."""

    name = "draft_model"
    Config = DraftModelConfig
    config: DraftModelConfig

    drops_drafted_kv = False

    def __init__(self, config: DraftModelConfig, models: Models) -> None:
        check_config(config)
        super().__init__(config, models)
        model = models.draft(config.draft)
        self.draft_name = model.name
        self.branches = not is_chain(config)
        self.session = models.session(model)
        # the leader alone decides what to draft, so the output head is for it alone
        self.session.wants_logits = models.ranks.is_leader
        self.vocabulary = models.target.decoder.vocabulary
        self._tree: TreeBuilder | None = None
        self._fed_nodes = 0
        self._request: Request | None = None

    @property
    def growth_runner(self) -> BlockRunner:
        """How the draft model runs while the tree grows; committed tokens are always fed in a plain pass."""
        return SequentialRunner()

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        length, context = len(request.tokens), self.session.context
        self.session.reset()
        self._tree = None
        # past its context the draft model is not used: propose drafts nothing there
        if length < context:
            self.session.cache.reserve(min(length + request.max_new_tokens, context))
            self.session.prefill(request.tokens[:-1])

    def propose(self, request: Request, budget: Budget) -> TokenTree:
        self._keep_accepted(request.tokens)
        depth = min(budget.depth, self.session.context - len(request.tokens))
        if depth < 1:
            return TokenTree.root_only(request.pending_token)
        unfed = request.tokens[self.session.length :]
        root_logits_V = align_vocabulary(self.session.feed(unfed), self.vocabulary)
        tree = TreeBuilder(request.pending_token, budget.nodes)
        self._tree, self._fed_nodes, self._request = tree, 1, request
        if not self.models.ranks.is_leader:
            return self._follow(tree)
        root_logits_V = request.sampler.penalise(root_logits_V[None], request.tokens, [()])[0]
        grown = self._grow(tree, root_logits_V, depth, request)
        self._announce([])
        return grown

    def _grow(self, tree: TreeBuilder, root_logits_V: torch.Tensor, depth: int, request: Request) -> TokenTree:
        config, name = self.config, self.name
        children = chosen_children(config, request.sampler.greedy)
        if config.growth == "static" or children != "top_k":
            widths = config.widths if config.growth == "static" else [config.width, 1]
            depth = min(depth, max(1, affordable_depth(widths, tree.max_nodes)))
            return grow_static(tree, root_logits_V, depth, widths, children, self._score, request, name)
        if config.growth == "dynamic":
            return grow_dynamic(tree, root_logits_V, depth, config.width, config.max_nodes, self._score, name)
        return grow_beam(tree, root_logits_V, depth, config.width, self._score, name)

    def _score(self, youngest: int) -> torch.Tensor:
        assert self._tree is not None and self._request is not None
        tree = self._tree
        self._announce(list(zip(tree.parent[-youngest:], tree.token[-youngest:], strict=True)))
        logits_KV = self.session.grow(tree, youngest, self.growth_runner)
        self._fed_nodes = tree.size
        return _penalised(align_vocabulary(logits_KV, self.vocabulary), tree, youngest, self._request)

    def _announce(self, nodes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Parent and token of the nodes that the leader feeds next; none, when it has fed the last."""
        return self.models.ranks.decide(lambda: nodes) if self.every_rank else nodes

    def _follow(self, tree: TreeBuilder) -> TokenTree:
        """Feed what the leader feeds: which tree grows is its decision, on its logits and random numbers."""
        while nodes := self._announce([]):
            for parent, token in nodes:
                tree.add(parent, token, "chosen")
            self.session.grow(tree, len(nodes), self.growth_runner)
            self._fed_nodes = tree.size
        return tree.build().tree

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


def _penalised(logits_KV: torch.Tensor, tree: TreeBuilder, youngest: int, request: Request) -> torch.Tensor:
    """The repetition penalty on the logits of the tree's ``youngest`` nodes, each with the tokens of its own path."""
    if request.sampler.params.repetition_penalty == 1:
        return logits_KV
    paths = []
    for node in range(tree.size - youngest, tree.size):
        path = []
        while node:
            path.append(tree.token[node])
            node = tree.parent[node]
        paths.append(path)
    return request.sampler.penalise(logits_KV, request.tokens, paths)


def is_chain(config: DraftModelConfig) -> bool:
    """Whether the trees of this config never branch."""
    return all(width == 1 for width in config.widths) if config.growth == "static" else config.width == 1


def chosen_children(config: DraftModelConfig, greedy: bool) -> Children:
    """What ``children`` means at this temperature. Greedy drafts gain nothing from draws that another run would repeat.

    A drawn token is accepted with min(1, p/q), a chosen one only with p: sampling, drawn trees are accepted more often
    (benchmarks/sampled_trees.py).
    """
    if config.children != "auto":
        return cast(Children, config.children)
    if not greedy and is_chain(config):
        return "with_replacement"
    return "top_k" if greedy or config.growth in ("beam", "dynamic") else "without_replacement"


def check_config(config: DraftModelConfig) -> None:
    """Raise UserError for values outside their range, and for drawn children that would be pruned."""
    for option, value, known in (("growth", config.growth, GROWTHS), ("children", config.children, CHILDREN)):
        if value not in known:
            raise UserError(f"drafter.{option}: unknown value {value!r}{did_you_mean(value, known)}")
    if not 1 <= config.width < LARGEST_TREE:
        raise UserError(f"drafter.width: {config.width} must be between 1 and {LARGEST_TREE - 1}")
    if config.max_nodes < 1:
        raise UserError(f"drafter.max_nodes: {config.max_nodes} must be 1 or more")
    if not config.widths or not 1 <= min(config.widths) <= max(config.widths) < LARGEST_TREE:
        raise UserError(f"drafter.widths: {config.widths} must list 1 … {LARGEST_TREE - 1} children for every level")
    if config.children.endswith("replacement") and config.growth in ("beam", "dynamic") and not is_chain(config):
        raise UserError(
            f"drafter.children: {config.children} draws at random, and growth={config.growth} would prune what was "
            "drawn; use drafter.growth=auto, or static with drafter.widths"
        )


def affordable_depth(widths: list[int], max_nodes: int) -> int:
    """Whole levels that a static tree of these widths can have with at most ``max_nodes`` nodes."""
    size = level = 1
    for depth in range(max_nodes):
        level *= widths[min(depth, len(widths) - 1)]
        size += level
        if size > max_nodes:
            return depth
    return max_nodes
