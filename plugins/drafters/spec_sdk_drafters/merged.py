"""Several drafters, one tree: SpecInfer's merging of token sequences and trees by common prefix.

Legend: M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spec_sdk.contracts import Budget, Drafter, Request
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.ranks import Ranks
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder


@dataclass
class MergedConfig:
    """``members``: the drafters, each as in YAML: ``{name: …, option: value}``. The first's draws are tried first."""

    members: list[dict[str, Any]] = field(default_factory=list)


class MergedDrafter(Drafter):
    """Lets every member propose, and merges their trees: paths with the same tokens become one.

    A token that two members drew at the same node keeps both draws, so that verification stays lossless. Each member
    keeps its own cache.
    """

    name = "merged"
    Config = MergedConfig
    config: MergedConfig

    def __init__(self, config: MergedConfig, models: Models) -> None:
        if not config.members:
            raise UserError("drafter.members: no drafter is listed; give at least one, such as {name: prompt_lookup}")
        super().__init__(config, models)
        self.members = [_member(i, node, models) for i, node in enumerate(config.members)]
        self.hidden_layers = tuple(sorted({layer for member in self.members for layer in member.hidden_layers}))
        names = [member.draft_name for member in self.members if member.draft_name is not None]
        self.branches = len(self.members) > 1 or self.members[0].branches
        self.draft_name = " + ".join(names) or None
        self.every_rank = any(member.every_rank for member in self.members)

    @property
    def _drafting(self) -> list[Drafter]:
        """The members that draft on this rank."""
        return [member for member in self.members if self.models.ranks.is_leader or member.every_rank]

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        for member in self._drafting:
            with member.leader_alone(self.models.ranks):
                member.start(request, prompt_hidden)

    def propose(self, request: Request, budget: Budget) -> TokenTree:
        ranks = self.models.ranks
        trees, room = [], budget.nodes - 1
        for waiting in range(len(self.members), 0, -1):
            member = self.members[-waiting]
            if not (ranks.is_leader or member.every_rank):
                continue
            # an equal share of what the members before have left, so that no draw must be dropped for what it gave
            share = -(-room // waiting)
            if member.every_rank:
                share = share_of_all(ranks, share)
            if share:
                with member.leader_alone(ranks):
                    tree = member.propose(request, Budget(min(budget.depth, share), share + 1))
                trees.append(tree)
                room -= tree.size - 1
        return merge(trees) if trees else TokenTree.root_only(request.pending_token)

    def observe(
        self, request: Request, committed: Sequence[int], path_hidden: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        for member in self._drafting:
            with member.leader_alone(self.models.ranks):
                member.observe(request, committed, path_hidden)


def share_of_all(ranks: Ranks, share: int) -> int:
    """The leader's ``share``: the other ranks do not hear what members that draft on the leader alone gave."""
    return ranks.decide(lambda: share)


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """One tree with all paths of ``trees``, which share their root token, in O(nodes + draws).

    The draws at a node are those of the first tree, then those of the second, and so on; a token drawn in several trees
    is one child with several draws. Sequences of draws without replacement stay apart from those of other trees, even
    if two drafters share a distribution. Raises ValueError if the roots differ.
    """
    merged = TreeBuilder(trees[0].token_N[0])
    for tree in trees:
        if tree.token_N[0] != merged.root:
            raise ValueError(f"trees of different roots cannot be merged: {merged.root} and {tree.token_N[0]}")
        node_of = [0] * tree.size
        for node, draws in enumerate(tree.draws_N):
            parent = node_of[node]
            above = merged.next_sequence(parent)
            for draw in draws:
                sequence = None if draw.sequence is None else above + draw.sequence
                token = tree.token_N[draw.node]
                node_of[draw.node] = merged.add(parent, token, draw.kind, draw.source, draw.drafter, sequence)
    return merged.build().tree


def _member(index: int, node: Mapping[str, Any], models: Models) -> Drafter:
    where = f"drafter.members[{index}]"
    if not isinstance(node.get("name"), str):
        raise UserError(f"{where}: it has no name; write it as {{name: prompt_lookup, option: value}}")
    make: Any
    make, config = Registry.discover().configure("drafter", node)
    try:
        drafter: Drafter = make(config, models)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return drafter
