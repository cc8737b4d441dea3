"""What ``beam`` and ``dynamic`` share: level by level, the most probable paths are fed.

Legend: K frontier nodes, W candidate children per node, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import torch

from spec_sdk.contracts import Growing, Growth, Request
from spec_sdk.ops.host_reads import read
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.options import children_of
from spec_sdk_growth.static import grow_static


class PathOptions(Protocol):
    """Options of every growth that keeps the most probable paths."""

    width: int
    children: str
    temperature: float


class MostProbableGrowth(Growth):
    """Children are chosen by their joint draft probability. A chain may be drawn at random instead."""

    config: PathOptions

    @property
    def branches(self) -> bool:
        return self.config.width > 1

    def grow(
        self, fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, request: Request, drafter: str
    ) -> Growing:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        if children != "top_k":
            return grow_static(fed, root_logits_V, depth, [1], children, self.config.temperature, request, drafter)
        return self.grow_chosen(fed, root_logits_V, depth, drafter)

    @abstractmethod
    def grow_chosen(self, fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, drafter: str) -> Growing:
        """:meth:`grow` where children are chosen, not drawn."""


@dataclass(frozen=True)
class Level:
    """The best children of every node of a level, and which of them were added to the tree that is fed.

    ``parents``: the K nodes. ``joint_KW``, ``token_KW``: joint log-probability and token of their children, on the CPU.
    ``added``: (parent, token) → node.
    """

    parents: list[int]
    joint_KW: torch.Tensor
    token_KW: torch.Tensor
    added: dict[tuple[int, int], int]


def grow_levels(
    fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, drafter: str
) -> Generator[int, torch.Tensor, list[Level]]:
    """Add the ``width`` most probable children of every level, and feed them.

    Where there is room for fewer, every level gets an equal share of it: the budget's depth is used. A level that is
    not fed is the last.
    """
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    levels: list[Level] = []
    for level in range(depth):
        if level:
            logits_KV = yield len(frontier)
            if not len(logits_KV):
                break
        joint_KW, token_KW = best_children(logits_KV, joint_K, width)
        share = fed.room // (depth - level)
        best = joint_KW.flatten().topk(min(width, joint_KW.numel(), share)).indices.sort().values
        parents = (best // joint_KW.shape[1]).tolist()
        chance_K = (joint_KW - joint_K[:, None]).flatten()[best].exp().tolist()
        joint_K = joint_KW.flatten()[best]
        tokens = token_KW.flatten()[best].tolist()
        added = {
            (frontier[k], token): fed.add(frontier[k], token, "chosen", drafter=drafter, probability=chance)
            for k, token, chance in zip(parents, tokens, chance_K, strict=True)
        }
        levels.append(Level(frontier, joint_KW, token_KW, added))
        frontier = list(added.values())
    return levels


def best_children(logits_KV: torch.Tensor, joint_K: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Joint log-probabilities [K, W] and tokens [K, W] of each node's best children, on the CPU."""
    logprob_KW, token_KW = read(*logits_KV.float().log_softmax(-1).topk(min(width, logits_KV.shape[-1])))
    return joint_K[:, None] + logprob_KW, token_KW
