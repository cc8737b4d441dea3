"""A growth: drafts go on for as long as the draft model is sure of them (legend: W tokens kept, V vocabulary)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spec_sdk.contracts import DraftLogits, Growing, Growth, Request, option
from spec_sdk.tree import TreeBuilder


@dataclass
class ConfidentConfig:
    """Options of the growth ``confident``."""

    floor: float = option(0.4, "the chain ends where no token has this probability", minimum=0, maximum=1)


class Confident(Growth):
    """A chain that ends where the draft model becomes unsure, after transformers' assistant_confidence_threshold."""

    name = "confident"
    Config = ConfidentConfig
    config: ConfidentConfig
    branches = False

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        node, logits = 0, root
        for level in range(depth):
            if level:
                logits = yield 1
            logprob_1W, token_1W = logits.top(1)
            # before the draw and not by what it gives: that would be another distribution than the declared one
            if math.exp(logprob_1W.item()) < self.config.floor:
                break
            if request.sampler.greedy:
                node = fed.add(node, int(token_1W), "chosen", drafter=drafter)
            else:
                distribution = request.sampler.distribution(logits.full_KV[0])
                node = fed.add(
                    node,
                    request.sampler.draw_from(distribution, request.rng),
                    "with_replacement",
                    distribution,
                    drafter,
                )
        return fed.build().tree
