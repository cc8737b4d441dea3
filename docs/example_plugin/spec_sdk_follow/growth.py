"""A growth: drafts go on for as long as the draft model is sure of them (legend: V vocabulary)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spec_sdk.contracts import Growing, Growth, Request, option
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

    def grow(
        self, fed: TreeBuilder, root_logits_V: torch.Tensor, depth: int, request: Request, drafter: str
    ) -> Growing:
        node, logits_V = 0, root_logits_V
        for level in range(depth):
            if level:
                (logits_V,) = yield 1
            # before the draw and not by what it gives: that would be another distribution than the declared one
            if float(logits_V.float().softmax(-1).max()) < self.config.floor:
                break
            if request.sampler.greedy:
                node = fed.add(node, int(logits_V.argmax()), "chosen", drafter=drafter)
            else:
                law = request.sampler.law(logits_V)
                node = fed.add(node, request.sampler.draw_from(law, request.rng), "with_replacement", law, drafter)
        return fed.build().tree
