"""Several drafters, one tree: SpecInfer's merging of token sequences and trees by common prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens, option
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.ops.draws import PART, part_of
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder


@dataclass
class MergedConfig:
    """Options of ``drafter=merged``."""

    members: list[dict[str, Any]] = option(
        [{"name": "draft_model"}, {"name": "prompt_lookup"}],
        "drafters whose trees are merged by common prefix, each as {name: …, option: value}; the first one's draws "
        "are tried first",
    )

    def __post_init__(self) -> None:
        if not self.members:
            raise UserError("drafter.members: no drafter is listed; give at least one, such as {name: prompt_lookup}")


class MergedDrafter(Drafter):
    """Lets every member propose, and merges their trees: paths with the same tokens become one.

    A token that two members drew at the same node keeps both draws, so that verification stays lossless. Each member
    keeps its own cache.
    """

    name = "merged"
    Config = MergedConfig
    config: MergedConfig

    def __init__(self, config: MergedConfig, models: Models) -> None:
        super().__init__(config, models)
        self.members = [member_of(node, f"drafter.members[{i}]", models) for i, node in enumerate(config.members)]
        self.taps = tuple(sorted({layer for member in self.members for layer in member.taps}))
        self.target_top_k = max(member.target_top_k for member in self.members)
        sessions = [member.draft_session for member in self.members if member.draft_session is not None]
        self.draft_session = sessions[0] if len(sessions) == 1 else None
        names = [member.draft_name for member in self.members if member.draft_name is not None]
        self.branches = len(self.members) > 1 or self.members[0].branches
        self.draft_name = " + ".join(names) or None
        self.catches_up = any(member.catches_up for member in self.members)
        longest = [member.longest_catch_up for member in self.members if member.catches_up]
        self.longest_catch_up = None if None in longest else max((each for each in longest if each), default=None)
        self.drafts_ahead = all(member.drafts_ahead for member in self.members)
        self.every_rank = any(member.every_rank for member in self.members)

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for member in self.members:
            member.start(requests, prompt_hidden)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        rooms = [budget.nodes - 1 for budget in budgets]
        trees: list[list[TokenTree]] = [[] for _ in requests]
        for waiting in range(len(self.members), 0, -1):
            # an equal share of what the members before have left, so that no draw must be dropped for what it gave
            shares = [-(-room // waiting) for room in rooms]
            asked = [i for i, share in enumerate(shares) if share]
            granted = [Budget(min(budgets[i].depth, shares[i]), shares[i] + 1) for i in asked]
            proposed = self.members[-waiting].propose([requests[i] for i in asked], granted) if asked else []
            for i, tree in zip(asked, proposed, strict=True):
                trees[i].append(tree)
                rooms[i] -= tree.size - 1
        return [
            merge(own, self.name) if own else TokenTree.root_only(request.pending_token)
            for request, own in zip(requests, trees, strict=True)
        ]

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        for member in self.members:
            if member.target_top_k:
                member.observe_scores(requests, trees, [top.first(member.target_top_k) for top in tops])

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        for member in self.members:
            member.observe(requests, committed, path_hidden)

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        for member in self.members:
            member.observe_forced(requests, forced)

    def finish(self, requests: Sequence[Request]) -> None:
        for member in self.members:
            member.finish(requests)


def merge(trees: Sequence[TokenTree], whole: str = "") -> TokenTree:
    """One tree with all paths of ``trees``, which share their root token, in O(nodes + draws).

    The draws at a node are those of the first tree, then those of the second, and so on; a token drawn in several trees
    is one child with several draws. Sequences of draws without replacement stay apart from those of other trees, even
    if two drafters share a distribution. ``whole``: the drafter whose parts have drafted; the draws are then its
    parts'. Raises ValueError if the roots differ.
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
                node_of[draw.node] = merged.add(
                    parent, token, draw.kind, draw.source, _named(draw.drafter, whole), sequence, draw.probability
                )
    return merged.build().tree


def _named(drafter: str, whole: str) -> str:
    return part_of(whole, drafter) if whole and not drafter.startswith(f"{whole}{PART}") else drafter


def member_of(node: Mapping[str, Any], where: str, models: Models) -> Drafter:
    """The drafter that an option, named as ``where``, describes. Raises UserError."""
    if not isinstance(node.get("name"), str):
        raise UserError(f"{where}: it has no name; write it as {{name: prompt_lookup, option: value}}")
    make: Any
    try:
        make, config = Registry.discover().configure("drafter", node)
        drafter: Drafter = make(config, models)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return drafter
