"""An invented machine and text: what every tree yields and takes is known, so the right advice is too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from spec_sdk.advice.cycles import Cycle, Shape
from spec_sdk.bench.cost_curve import CostCurve

PLAIN_S = 0.010
PREFIX = 100
STRETCH = 20


@dataclass(frozen=True)
class World:
    """``acceptance``: the chance that a chain goes on at a token; misses of a level of w nodes are rarer by w^-0.5.

    ``node``: what a node more costs in plain passes; ``level_s``, ``host_s``: of a drafted level, and of every cycle
    with a tree beside its pass. ``copied``: the chance where the text copies, as it does in every other stretch of
    ``STRETCH`` tokens on average; None of a text that is alike everywhere.
    """

    acceptance: float
    node: float
    level_s: float
    host_s: float = 0.0
    copied: float | None = None

    @property
    def curve(self) -> CostCurve:
        return CostCurve({(PREFIX, n): self.pass_s(n) for n in (1, 2, 4, 8, 16, 32, 64)})

    def pass_s(self, nodes: int) -> float:
        return PLAIN_S * (1 + self.node * (nodes - 1))

    def text(self, tokens: int, seed: int) -> list[int]:
        """Of every token, the rank that the drafter gives it."""
        draw, copies, ranks = random.Random(seed), False, list[int]()
        for _ in range(tokens):
            copies ^= self.copied is not None and draw.random() < 1 / STRETCH
            ranks.append(_rank(draw.random(), self.copied if copies and self.copied is not None else self.acceptance))
        return ranks

    def play(self, ranks: list[int], shape_of: Callable[[int], Shape]) -> list[Cycle]:
        """The answer, cycle by cycle, with the tree of ``shape_of`` in each, as far as tokens are left for it."""
        cycles, at = list[Cycle](), 0
        while at < len(ranks):
            granted = shape_of(len(cycles))
            shape = Shape(min(granted.depth, len(ranks) - at - 1), granted.width)
            kept = 0
            while kept < shape.depth and at + kept < len(ranks) and ranks[at + kept] <= shape.width:
                kept += 1
            tokens = min(kept + 1, len(ranks) - at)
            cycles.append(
                Cycle(
                    PREFIX,
                    shape.depth,
                    shape.nodes,
                    tuple(ranks[at : at + kept]),
                    (shape.width,) * shape.depth,
                    tokens,
                    self.level_s * shape.depth,
                    self.pass_s(shape.nodes) + (self.host_s if shape.depth else 0.0),
                )
            )
            at += tokens
        return cycles

    def plain(self, tokens: int) -> list[Cycle]:
        """Plain decoding of as many tokens."""
        return self.play([1] * tokens, lambda cycle: Shape(0, 0))


def _rank(number: float, acceptance: float) -> int:
    # P(rank > w) = (1 - acceptance) / sqrt(w)
    missed = 1 - number
    return 1 if missed > 1 - acceptance else int(((1 - acceptance) / missed) ** 2) + 1
