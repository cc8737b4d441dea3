"""How a draft tree grows: which children each level gets.

Legend: K frontier nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.contracts import Request
from spec_sdk.tree import TreeBuilder

Score = Callable[[int], torch.Tensor]
"""Feeds the given number of youngest nodes to the draft model; returns their logits [K, V]."""


def grow_by_top_k(
    tree: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, score: Score, drafter: str
) -> None:
    """Every level keeps the ``width`` most probable paths, by joint draft probability. Children are chosen, not drawn.

    Width 1 is the draft model's greedy chain.
    """
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    for level in range(depth):
        if level:
            logits_KV = score(len(frontier))
        logprob_KW, token_KW = logits_KV.float().log_softmax(-1).topk(min(width, logits_KV.shape[-1]))
        path_KW = joint_K[:, None] + logprob_KW.cpu()
        best = path_KW.flatten().topk(min(width, path_KW.numel())).indices.sort().values
        joint_K = path_KW.flatten()[best]
        tokens = token_KW.flatten().cpu()[best].tolist()
        parents = (best // path_KW.shape[1]).tolist()
        frontier = [tree.add(frontier[p], t, "chosen", drafter=drafter) for p, t in zip(parents, tokens, strict=True)]


def grow_by_sampling(
    tree: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, score: Score, request: Request, drafter: str
) -> None:
    """``width`` children drawn at the root without replacement, then one child per node: ``width`` sampled chains.

    Fewer children are drawn if the root's distribution has fewer tokens. Width 1 is ordinary speculative sampling.
    """
    sampler = request.sampler
    q_V = sampler.probabilities(root_logits_V[None])[0].cpu()
    width = min(width, int((q_V > 0).sum()))
    remaining_V, frontier = q_V, []
    for drawn in range(width):
        token = sampler.draw(remaining_V, request.rng)
        frontier.append(tree.add(0, token, "without_replacement", q_V, drafter))
        if drawn + 1 < width:
            remaining_V = sampler.without(remaining_V, token)
    for _ in range(depth - 1):
        q_KV = sampler.probabilities(score(len(frontier))).cpu()
        tokens = [sampler.draw(q_V, request.rng) for q_V in q_KV]
        frontier = [
            tree.add(parent, token, "with_replacement", q_V, drafter)
            for parent, token, q_V in zip(frontier, tokens, q_KV, strict=True)
        ]
