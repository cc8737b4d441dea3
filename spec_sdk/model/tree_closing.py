"""The tree that the most probable paths make, put together where their logits are.

A growth on the host closes its tree once it has read all levels. Here the same rules work on what was fed, so that a
target's pass over the tree can be launched before anything is read.

Legend: X nodes that were fed, the root among them, W children of each, C = X · W children, M children that are kept at
most, N = M + 1 nodes of the closed tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.tree_intervals import intervals
from spec_sdk.ops.grown_paths import ProbablePaths


@dataclass(frozen=True)
class ClosingRule:
    """All that a tree's closing depends on beside probabilities and prices.

    ``counts``: fed nodes of each level below the root. ``last``: children of the last level's nodes that are picked, or
    None where all children compete. ``most``: M.
    """

    width: int
    counts: tuple[int, ...]
    last: int | None
    most: int
    priced: bool

    @staticmethod
    def of(paths: ProbablePaths, counts: tuple[int, ...]) -> ClosingRule | None:
        """The rule of these paths, of which ``counts`` are fed; None where no tree is wanted, or none has a child."""
        closing = paths.closing
        if closing is None:
            return None
        size, last = 1 + sum(counts), None
        if closing.most:
            most = min(closing.most, paths.nodes - 1, size * paths.width)
        else:
            last = min(paths.width, (paths.nodes - size) // (paths.depth - len(counts)))
            most = sum(counts) + last
        if closing.node_costs:
            most = min(most, len(closing.node_costs) - 1)
        return ClosingRule(paths.width, counts, last, most, bool(closing.node_costs)) if most > 0 else None

    def prices(self, paths: ProbablePaths) -> torch.Tensor:
        """What :meth:`closed` reads of prices, float64, in host memory: how probably a level must be reached, and what
        each number of kept children costs.
        """
        assert paths.closing is not None
        costs = paths.closing.node_costs[1 : self.most + 1] if self.priced else ()
        return torch.tensor([paths.least_reach, *costs], dtype=torch.float64)

    def closed(
        self,
        joint_XW: torch.Tensor,
        token_XW: torch.Tensor,
        picked: Sequence[torch.Tensor],
        ancestor_XX: torch.Tensor,
        prices: torch.Tensor,
    ) -> torch.Tensor:
        """The tree as :attr:`~spec_sdk.ops.grown_paths.ClosedTree.node_3N`, float64. Waits for nothing.

        ``joint_XW``: log-probabilities of the children of all fed nodes, each with those of the path to it; -inf or NaN
        where there is none. ``picked``: of every level below the root, which children of the level above it are fed,
        numbered among those. ``ancestor_XX`` [i, j]: 1.0 where fed node j is an ancestor of node i, or i itself.
        """
        X, W = joint_XW.shape
        device, joint_C = joint_XW.device, joint_XW.flatten()
        first = [0, 1, *(1 + sum(self.counts[: level + 1]) for level in range(len(self.counts)))]
        place_of_fed = [number + W * first[level] for level, number in enumerate(picked)]
        offered_C = self._offered(joint_C, place_of_fed, first, prices[0])
        order_M, kept = self._kept(torch.where(offered_C, joint_C, -math.inf), prices[1:])
        number_M = torch.arange(self.most, device=device)
        # in the order of creation: of every parent after the other its children, the most probable first
        source_M = torch.where(number_M < kept, order_M, X * W).sort().values
        live_M = source_M < X * W
        source_M = source_M.clamp_max(X * W - 1)
        above_M = source_M // W
        # a child that was not fed has the number X, which is nobody's ancestor
        fed_C = torch.full((X * W,), X, device=device)
        place_X = torch.cat([torch.full((1,), -1, device=device), *place_of_fed])
        fed_C.index_copy_(0, place_X[1:], torch.arange(1, X, device=device))
        of_parent_MX = torch.nn.functional.pad(ancestor_XX, (0, 1))[above_M]
        ancestor_NN = torch.eye(self.most + 1, device=device)
        ancestor_NN[1:, 1:] += of_parent_MX[:, fed_C[source_M]]
        ancestor_NN[1:, 0] = 1
        ancestor_NN[1:] *= live_M[:, None]
        ancestor_NN[:, 1:] *= live_M
        # places behind the last kept child hold that of the last child of all, or more
        parent_M = torch.searchsorted(torch.where(live_M, source_M, X * W), place_X[above_M]) + 1
        parent_M = torch.where(above_M == 0, 0, parent_M)
        parent_N = torch.cat((place_X[:1], torch.where(live_M, parent_M, -2)))
        start_N, end_N = intervals(parent_N, ancestor_NN)
        token_N = torch.cat((torch.zeros_like(parent_N[:1]), token_XW.flatten()[source_M]))
        node_3N = torch.stack((token_N.double(), ancestor_NN.sum(1) - 1, end_N.double()))
        live_N = torch.cat((torch.ones_like(live_M[:1]), live_M))
        place_N = torch.where(live_N, start_N.long(), self.most + 1)
        closed = torch.zeros((3, self.most + 2), dtype=torch.float64, device=device)
        return closed.scatter_(1, place_N.expand(3, -1), node_3N)[:, :-1]

    def _offered(
        self, joint_C: torch.Tensor, place_of_fed: Sequence[torch.Tensor], first: Sequence[int], least: torch.Tensor
    ) -> torch.Tensor:
        """Which children may be kept: those of levels that are reached probably enough, and are picked or compete."""
        W, of_level = self.width, [torch.ones((1,), dtype=torch.bool, device=joint_C.device)]
        for place_K in place_of_fed:
            # a level is never reached more probably than the one above it
            reached = ~(joint_C[place_K].exp().sum(0, keepdim=True) < least)
            of_level.append(reached.expand(len(place_K)))
        offered_C = torch.cat(of_level).repeat_interleave(W)
        if self.last is not None:
            last = W * first[len(self.counts)]
            best_K = joint_C[last:].sort(descending=True, stable=True).indices[: self.last] + last
            picked_C = torch.zeros_like(offered_C).index_fill_(0, torch.cat([*place_of_fed, best_K]), True)
            offered_C = offered_C & picked_C
        return offered_C & (joint_C > -math.inf)

    def _kept(self, joint_C: torch.Tensor, cost_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The most probable children [M], and how many of them are kept."""
        # of equally probable ones the earlier, which is the parent where they are parent and child
        ordered = joint_C.sort(descending=True, stable=True)
        joint_M = ordered.values[: self.most]
        kept = (joint_M > -math.inf).sum()
        if self.priced:
            gain_M = torch.where(joint_M > -math.inf, joint_M.exp().cumsum(0) - cost_M, -math.inf)
            most, at = gain_M.max(0)
            kept = torch.where(most > 0, at + 1, 0)
        return ordered.indices[: self.most], kept
