"""Beam growth: the most probable paths of every level.

Legend: K frontier nodes, W candidate children per node, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import Growing, Growth, Request
from spec_sdk.ops.host_reads import read
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.options import check_kept, children_of, children_option, width_option
from spec_sdk_growth.static import grow_static


@dataclass
class BeamConfig:
    """Options of ``drafter.growth=beam``; only a chain may be drawn at random."""

    width: int = width_option()
    children: str = children_option()

    def __post_init__(self) -> None:
        check_kept(self.children, "beam", self.width)


class BeamGrowth(Growth):
    """Every level keeps the ``width`` most probable paths, by joint draft probability.

    Width 1 is the draft model's greedy chain, or a drawn one. The tree has 1 + depth * width nodes at most.
    """

    name = "beam"
    Config = BeamConfig
    config: BeamConfig

    @property
    def branches(self) -> bool:
        return self.config.width > 1

    def grow(
        self, fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, request: Request, drafter: str
    ) -> Growing:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=True)
        if children != "top_k":
            return grow_static(fed, root_logits_V, depth, [1], children, request, drafter)
        return grow_beam(fed, root_logits_V, depth, self.config.width, drafter)


def grow_beam(fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, drafter: str) -> Growing:
    """The ``width`` most probable paths of every level; children are chosen, not drawn."""
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    for level in range(depth):
        if level:
            logits_KV = yield len(frontier)
        joint_KW, token_KW = best_children(logits_KV, joint_K, width)
        best = joint_KW.flatten().topk(min(width, joint_KW.numel(), fed.room)).indices.sort().values
        joint_K = joint_KW.flatten()[best]
        tokens = token_KW.flatten()[best].tolist()
        parents = (best // joint_KW.shape[1]).tolist()
        frontier = [fed.add(frontier[p], t, "chosen", drafter=drafter) for p, t in zip(parents, tokens, strict=True)]
        if not fed.room:
            break
    return fed.build().tree


def best_children(logits_KV: torch.Tensor, joint_K: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Joint log-probabilities [K, W] and tokens [K, W] of each node's best children, on the CPU."""
    logprob_KW, token_KW = read(*logits_KV.float().log_softmax(-1).topk(min(width, logits_KV.shape[-1])))
    return joint_K[:, None] + logprob_KW, token_KW
