"""What ``beam`` and ``dynamic`` share: level by level, the most probable paths are fed.

Legend: K frontier nodes, W candidate children per node.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from spec_sdk.contracts import DraftLogits, Growing, Growth, Request, TreeShape
from spec_sdk.plugin import not_inherited
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.options import children_of, shape_of
from spec_sdk_growth.static import grow_static


class PathOptions(Protocol):
    """Options of every growth that keeps the most probable paths."""

    width: int
    children: str
    temperature: float


class MostProbableGrowth(Growth):
    """Children are chosen by their joint draft probability. A chain may be drawn at random instead."""

    config: PathOptions

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for described in ("kept_paths", "most_offered"):
            not_inherited(cls, described, getattr(Growth, described), ["grow_chosen"])

    @property
    def branches(self) -> bool:
        return self.config.width > 1

    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape | None:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        return None if self.branches else shape_of([1] * depth, children, self.config.temperature)

    def width_if_chosen(self, request: Request) -> int | None:
        """``width`` where children are chosen, not drawn."""
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        return self.config.width if children == "top_k" else None

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        if children != "top_k":
            return grow_static(fed, root, depth, [1], children, self.config.temperature, request, drafter)
        return self.grow_chosen(fed, root, depth, drafter)

    @abstractmethod
    def grow_chosen(self, fed: TreeBuilder, root: DraftLogits, depth: int, drafter: str) -> Growing:
        """:meth:`grow` where children are chosen, not drawn."""


@dataclass(frozen=True)
class Level:
    """The best children of every node of a level, and which of them were added to the tree that is fed.

    ``parents``: the K nodes. ``joint_KW``, ``token_KW``: joint log-probability and token of their children. ``added``:
    (parent, token) → node.
    """

    parents: list[int]
    joint_KW: list[list[float]]
    token_KW: list[list[int]]
    added: dict[tuple[int, int], int]


def grow_levels(
    fed: TreeBuilder, root: DraftLogits, depth: int, width: int, drafter: str
) -> Generator[int, DraftLogits, list[Level]]:
    """Add the ``width`` most probable children of every level, and feed them.

    Where there is room for fewer, every level gets an equal share of it: the budget's depth is used. A level that is
    not fed is the last.
    """
    frontier, joint_K, logits = [0], [0.0], root
    levels: list[Level] = []
    for level in range(depth):
        if level:
            logits = yield len(frontier)
            if not len(logits):
                break
        logprob_KW, token_KW = (part.tolist() for part in logits.top(width))
        joint_KW = [[above + own for own in logprob_W] for above, logprob_W in zip(joint_K, logprob_KW, strict=True)]
        # not what a constraint rules out
        offered = [
            (-joint, k, w) for k, joint_W in enumerate(joint_KW) for w, joint in enumerate(joint_W) if joint > -math.inf
        ]
        share = fed.room // (depth - level)
        best = sorted([(k, w) for _, k, w in sorted(offered)[: min(width, share)]])
        added = {
            (frontier[k], token_KW[k][w]): fed.add(
                frontier[k], token_KW[k][w], "chosen", drafter=drafter, probability=math.exp(logprob_KW[k][w])
            )
            for k, w in best
        }
        levels.append(Level(frontier, joint_KW, token_KW, added))
        frontier, joint_K = list(added.values()), [joint_KW[k][w] for k, w in best]
    return levels
