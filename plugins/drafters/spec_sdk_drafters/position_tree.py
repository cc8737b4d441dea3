"""Trees of guesses whose probabilities follow from their depth alone: those of heads that each see one position ahead.

Legend: P positions ahead, C candidates of a position, V vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from spec_sdk.contracts import Budget, Request
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.guessing import first_nodes, least_price, worthwhile

Candidates = Sequence[tuple[int, float]]
"""Tokens of one position and their probabilities, the most probable first."""


def likeliest(request: Request, logits_PV: torch.Tensor, candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens of every position and their probabilities, both [P, C], under the request's penalty.

    Its constraint is asked for the first position alone: what it allows later depends on the tokens between.
    """
    first_1V = request.process_logits(logits_PV[:1], [()])
    later_PV = request.sampler.penalise(logits_PV[1:], request.tokens, [()] * (len(logits_PV) - 1))
    logprob_PC, token_PC = request.ops.top_log_probabilities(torch.cat((first_1V, later_PV)), candidates)
    return token_PC, logprob_PC.exp()


def positions_of(token_PC: torch.Tensor, probability_PC: torch.Tensor) -> list[Candidates]:
    """The candidates of every position, of tensors on the host."""
    pairs = zip(token_PC.tolist(), probability_PC.tolist(), strict=True)
    return [list(zip(tokens, probabilities, strict=True)) for tokens, probabilities in pairs]


def most_probable_tree(
    root: int, positions: Sequence[Candidates], budget: Budget, drafter: str, min_probability: float = 0.0
) -> TreeBuilder:
    """The tree of the paths with the largest products of probabilities, within the budget, best first.

    None has less than ``min_probability``.

    ``positions[d]``: what may follow at depth d, whatever stands before it. A path's product is at most its parent's
    and its better sibling's, so what is taken, best first, is a tree, and nothing but a taken node's first child and
    its next sibling need be offered. Of equally probable paths the one that was offered first is taken.
    """
    tree, probabilities = TreeBuilder(root, budget.nodes), list[float]()
    least, offered = max(min_probability, least_price(budget.node_costs)), 0
    # joint probability (negative, for the heap), number, parent, the parent's own probability, which candidate
    offers: list[tuple[float, int, int, float, int]] = []

    def offer(parent: int, joint: float, rank: int) -> None:
        nonlocal offered
        candidates = positions[tree.depth[parent]]
        if rank < len(candidates) and (probability := joint * candidates[rank][1]) > 0 and probability >= least:
            offered += 1
            heapq.heappush(offers, (-probability, offered, parent, joint, rank))

    depth = min(budget.depth, len(positions))
    if depth:
        offer(0, 1.0, 0)
    while offers and tree.room:
        negative, _, parent, joint, rank = heapq.heappop(offers)
        token = positions[tree.depth[parent]][rank][0]
        chance = positions[tree.depth[parent]][rank][1]
        node = tree.add(parent, token, "chosen", drafter=drafter, probability=chance)
        probabilities.append(-negative)
        offer(parent, joint, rank + 1)
        if tree.depth[node] < depth:
            offer(node, -negative, 0)
    size = 1 + worthwhile(probabilities, budget.node_costs)
    return tree if size == tree.size else first_nodes(tree, size)
