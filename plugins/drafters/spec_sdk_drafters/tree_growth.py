"""How a draft tree grows: which children each node gets, and which of them stay.

Every function feeds nodes to the draft model through ``score`` and returns the closed tree. ``fed`` is the tree of the
nodes that were fed, in the order of their cache slots; the closed tree may have more nodes (children that were never
fed) or fewer (pruned ones). Neither has more nodes than ``fed.max_nodes``: the first levels have them all.

Legend: K frontier nodes, W candidate children per node, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from spec_sdk.contracts import Request
from spec_sdk.tree import DraftDistribution, TokenTree, TreeBuilder

Score = Callable[[int], torch.Tensor]
"""Feeds the given number of youngest nodes of the fed tree to the draft model; returns their logits [K, V]."""
Children = Literal["top_k", "with_replacement", "without_replacement"]


def grow_beam(
    fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, width: int, score: Score, drafter: str
) -> TokenTree:
    """Every level keeps the ``width`` most probable paths, by joint draft probability. Children are chosen, not drawn.

    Width 1 is the draft model's greedy chain. The tree has 1 + depth * width nodes at most.
    """
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    for level in range(depth):
        if level:
            logits_KV = score(len(frontier))
        joint_KW, token_KW = _best_children(logits_KV, joint_K, width)
        best = joint_KW.flatten().topk(min(width, joint_KW.numel(), fed.room)).indices.sort().values
        joint_K = joint_KW.flatten()[best]
        tokens = token_KW.flatten()[best].tolist()
        parents = (best // joint_KW.shape[1]).tolist()
        frontier = [fed.add(frontier[p], t, "chosen", drafter=drafter) for p, t in zip(parents, tokens, strict=True)]
        if not fed.room:
            break
    return fed.build().tree


def grow_dynamic(
    fed: TreeBuilder,
    root_logits_V: torch.Tensor,
    depth: int,
    width: int,
    max_nodes: int,
    score: Score,
    drafter: str,
) -> TokenTree:
    """The ``max_nodes`` most probable paths of all lengths (the root not counted), after EAGLE-2 (Li et al. 2024, §4).

    Expansion: on every level the ``width`` most probable nodes are fed, and each offers its ``width`` best children.
    Reranking: of all that was offered, the most probable by joint probability are kept. A parent is at least as
    probable as its child, so what is kept is a tree.
    """
    frontier, joint_K = [0], torch.zeros(1)
    logits_KV = root_logits_V[None]
    offered: list[tuple[float, int, int, int]] = []
    fed_as: dict[tuple[int, int], int] = {}
    for level in range(depth):
        if level:
            logits_KV = score(len(frontier))
        joint_KW, token_KW = _best_children(logits_KV, joint_K, width)
        for k, parent in enumerate(frontier):
            children = zip(joint_KW[k].tolist(), token_KW[k].tolist(), strict=True)
            offered += [(-joint, level, parent, token) for joint, token in children]
        if level + 1 == depth or not fed.room:
            break
        best = joint_KW.flatten().topk(min(width, joint_KW.numel(), fed.room)).indices.sort().values
        joint_K = joint_KW.flatten()[best]
        pairs = zip((best // joint_KW.shape[1]).tolist(), token_KW.flatten()[best].tolist(), strict=True)
        expanded = [(frontier[k], token) for k, token in pairs]
        frontier = [fed.add(parent, token, "chosen", drafter=drafter) for parent, token in expanded]
        fed_as.update(zip(expanded, frontier, strict=True))
    # sorted by level too, so that of two paths of equal probability the parent comes before its child
    most = min(max_nodes, fed.max_nodes - 1)
    kept = sorted(sorted(offered)[:most], key=lambda offer: (offer[1], offer[2], offer[0]))
    tree, node_of = TreeBuilder(fed.root), {0: 0}
    for _, _, parent, token in kept:
        node = tree.add(node_of[parent], token, "chosen", drafter=drafter)
        if (parent, token) in fed_as:
            node_of[fed_as[parent, token]] = node
    return tree.build().tree


def grow_static(
    fed: TreeBuilder,
    root_logits_V: torch.Tensor,
    depth: int,
    widths: Sequence[int],
    children: Children,
    score: Score,
    request: Request,
    drafter: str,
) -> TokenTree:
    """Every node of level d gets ``widths[d]`` children; beyond the list its last entry goes on.

    Children are the most probable ones, or drawn with the request's sampler and random numbers. Draws with replacement
    may coincide, and a distribution may have fewer tokens than are asked for without replacement: then there are fewer
    children. Widths of 1, drawn, are the chain of ordinary speculative sampling.
    """
    frontier = [0]
    logits_KV = root_logits_V[None]
    for level in range(depth):
        if level:
            logits_KV = score(len(frontier))
        first_new, count = fed.size, widths[min(level, len(widths) - 1)]
        if children == "top_k":
            tokens_KW = logits_KV.topk(min(count, logits_KV.shape[-1])).indices.tolist()
            for node, tokens in zip(frontier, tokens_KW, strict=True):
                for token in tokens[: fed.room]:
                    fed.add(node, token, "chosen", drafter=drafter)
        else:
            for node, logits_V in zip(frontier, logits_KV, strict=True):
                _draw_children(fed, node, request.sampler.law(logits_V), count, children, request, drafter)
        frontier = list(range(first_new, fed.size))
    return fed.build().tree


def _best_children(logits_KV: torch.Tensor, joint_K: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Joint log-probabilities [K, W] and tokens [K, W] of each node's best children, on the CPU."""
    logprob_KW, token_KW = logits_KV.float().log_softmax(-1).topk(min(width, logits_KV.shape[-1]))
    return joint_K[:, None] + logprob_KW.cpu(), token_KW.cpu()


def _draw_children(
    fed: TreeBuilder, node: int, law: DraftDistribution, count: int, children: Children, request: Request, drafter: str
) -> None:
    sampler, rng = request.sampler, request.rng
    if children == "with_replacement":
        for _ in range(count):
            # before the draw: whether it counts must not depend on what it gives
            if fed.room:
                fed.add(node, sampler.draw_from(law, rng), "with_replacement", law, drafter)
        return
    remaining_V = law.q_V
    for left in range(min(count, fed.room, int((remaining_V > 0).sum())), 0, -1):
        token = sampler.draw(remaining_V, rng)
        fed.add(node, token, "without_replacement", law, drafter)
        if left > 1:
            remaining_V = sampler.without(remaining_V, token)
