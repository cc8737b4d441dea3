"""The trees that the most probable paths make, put together where their logits are.

A growth on the host closes its tree once it has read all levels. Here the same rules work on what was fed, so that a
target's pass over the trees can be launched before anything is read.

Legend: B requests, X nodes that were fed of each, the root among them, W children of each, C = X · W children, M
children that are kept at most, N = M + 1 nodes of a closed tree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.tree_intervals import intervals
from spec_sdk.ops.grown_paths import NEGLIGIBLE_GAIN, ProbablePaths


@dataclass(frozen=True)
class ClosingRule:
    """All that the closing of trees depends on beside probabilities and prices.

    ``counts``: fed nodes of each level below the root. ``last``: children of the last level's nodes that are picked, or
    None where all children compete. ``most``: M.
    """

    width: int
    counts: tuple[int, ...]
    last: int | None
    most: int
    priced: bool

    def prices(self, paths: Sequence[ProbablePaths]) -> torch.Tensor:
        """What :meth:`closed` reads of each request's budget, float64 in host memory: how probably a level must be
        reached, how many levels are fed and how many children kept at most, and what each number of them costs.
        """
        rows = []
        for own in paths:
            costs = own.closing.node_costs[1 : self.most + 1] if self.priced and own.closing is not None else ()
            left = [math.inf] * (self.most - len(costs)) if self.priced else []
            rows.append([own.least_reach, own.depth - 1, own.nodes - 1, *costs, *left])
        return torch.tensor(rows, dtype=torch.float64)

    def closed(
        self,
        joint_BXW: torch.Tensor,
        token_BXW: torch.Tensor,
        picked: Sequence[torch.Tensor],
        ancestor_BXX: torch.Tensor,
        prices: torch.Tensor,
    ) -> torch.Tensor:
        """The trees as :attr:`~spec_sdk.ops.grown_paths.ClosedTrees.node_B3N`, float64. Waits for nothing.

        ``joint_BXW``: log-probabilities of the children of all fed nodes, each with those of the path to it; -inf or
        NaN where there is none. ``picked``: of every level below the root [B, K], which children of the level above it
        are fed, numbered among those. ``ancestor_BXX`` [b, i, j]: 1.0 where fed node j is an ancestor of node i, or i
        itself.
        """
        B, X, W = joint_BXW.shape
        C, M, device, joint_BC = X * W, self.most, joint_BXW.device, joint_BXW.flatten(1)
        firsts = list(itertools.accumulate((1, *self.counts), initial=0))
        place_of_fed = [number_BK + W * first for number_BK, first in zip(picked, firsts, strict=False)]
        offered_BC = self._offered(joint_BC, place_of_fed, W * firsts[len(self.counts)], prices)
        order_BM, kept_B1 = self._kept(torch.where(offered_BC, joint_BC, -math.inf), prices[:, 2:])
        # in the order of creation: of every parent after the other its children, the most probable first
        source_BM = torch.where(torch.arange(M, device=device) < kept_B1, order_BM, C).sort(1).values
        live_BM = source_BM < C
        child_BM = source_BM.clamp_max(C - 1)
        above_BM = child_BM // W
        nobody_B1 = torch.full((B, 1), -1, device=device)
        place_BX = torch.cat([nobody_B1, *place_of_fed], 1)
        # a child that was not fed has the number X, which is nobody's ancestor
        fed_BC = torch.full((B, C), X, device=device)
        fed_BC.scatter_(1, place_BX[:, 1:], torch.arange(1, X, device=device).expand(B, -1))
        of_parent_BMX = F.pad(ancestor_BXX, (0, 1)).take_along_dim(above_BM[:, :, None], 1)
        ancestor_BNN = torch.eye(M + 1, device=device).repeat(B, 1, 1)
        ancestor_BNN[:, 1:, 1:] += of_parent_BMX.take_along_dim(fed_BC.gather(1, child_BM)[:, None], 2)
        ancestor_BNN[:, 1:, 0] = 1
        ancestor_BNN[:, 1:] *= live_BM[:, :, None]
        ancestor_BNN[:, :, 1:] *= live_BM[:, None]
        parent_BM = torch.searchsorted(source_BM, place_BX.gather(1, above_BM)) + 1
        parent_BM = torch.where(above_BM == 0, 0, parent_BM)
        parent_BN = torch.cat((nobody_B1, torch.where(live_BM, parent_BM, -2)), 1)
        start_BN, end_BN = intervals(parent_BN, ancestor_BNN)
        token_BN = F.pad(token_BXW.flatten(1).gather(1, child_BM), (1, 0))
        node_B3N = torch.stack((token_BN.double(), ancestor_BNN.sum(2) - 1, end_BN.double()), 1)
        # what is not kept goes behind the last place
        place_BN = torch.where(F.pad(live_BM, (1, 0), value=True), start_BN.long(), M + 1)
        closed = torch.zeros((B, 3, M + 2), dtype=torch.float64, device=device)
        return closed.scatter_(2, place_BN[:, None].expand(-1, 3, -1), node_B3N)[:, :, :-1]

    def _offered(
        self, joint_BC: torch.Tensor, place_of_fed: Sequence[torch.Tensor], last: int, prices: torch.Tensor
    ) -> torch.Tensor:
        """Which children may be kept: those of levels that are reached probably enough, and are picked or compete.
        ``last``: the first child of the last level's nodes.
        """
        of_level = [torch.ones((len(joint_BC), 1), dtype=torch.bool, device=joint_BC.device)]
        least_B1, levels_B1 = prices[:, :1], prices[:, 1:2]
        for level, place_BK in enumerate(place_of_fed, start=1):
            # a level is never reached more probably than the one above it
            reached_B1 = ~(joint_BC.gather(1, place_BK).exp().sum(1, keepdim=True) < least_B1)
            of_level.append((reached_B1 & (levels_B1 >= level)).expand(-1, place_BK.shape[1]))
        offered_BC = torch.cat(of_level, 1).repeat_interleave(self.width, 1)
        if self.last is not None:
            best_BK = joint_BC[:, last:].sort(dim=1, descending=True, stable=True).indices[:, : self.last] + last
            picked_BC = torch.zeros_like(offered_BC).scatter_(1, torch.cat([*place_of_fed, best_BK], 1), True)
            offered_BC = offered_BC & picked_BC
        return offered_BC & (joint_BC > -math.inf)

    def _kept(self, joint_BC: torch.Tensor, prices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The most probable children [B, M], and how many of them are kept [B, 1]. ``prices``: of those that nodes
        have.
        """
        room_B1, cost_BM = prices[:, :1], prices[:, 1:]
        # of equally probable ones the earlier, which is the parent where they are parent and child
        ordered = joint_BC.sort(dim=1, descending=True, stable=True)
        number_M = torch.arange(1, self.most + 1, device=joint_BC.device)
        joint_BM = torch.where(number_M <= room_B1, ordered.values[:, : self.most], -math.inf)
        kept_B1 = (joint_BM > -math.inf).sum(1, keepdim=True)
        if self.priced:
            gain_BM = torch.where(joint_BM > -math.inf, joint_BM.exp().cumsum(1) - cost_BM, -math.inf)
            most_B1 = gain_BM.amax(1, keepdim=True)
            # of equal gains that of the fewest nodes, whatever the rounding of the sums
            first_B1 = torch.where(gain_BM >= most_B1 - NEGLIGIBLE_GAIN, number_M, self.most).amin(1, keepdim=True)
            kept_B1 = torch.where(most_B1 > NEGLIGIBLE_GAIN, first_B1, 0)
        return ordered.indices[:, : self.most], kept_B1
