"""Beam growth: the most probable paths of every level."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import DraftLogits, Growing, Request
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.most_probable import MostProbableGrowth, grow_levels
from spec_sdk_growth.options import check_draws, check_kept, children_option, temperature_option, width_option


@dataclass
class BeamConfig:
    """Options of ``drafter.growth=beam``; only a chain may be drawn at random."""

    width: int = width_option()
    children: str = children_option()
    temperature: float = temperature_option()

    def __post_init__(self) -> None:
        check_kept(self.children, "beam", self.width)
        check_draws(self.children, self.temperature, "beam", pruned=self.width > 1)


class BeamGrowth(MostProbableGrowth):
    """Every level keeps the ``width`` most probable paths, by joint draft probability.

    Width 1 is the draft model's greedy chain, or a drawn one. The tree has 1 + depth * width nodes at most.
    """

    name = "beam"
    Config = BeamConfig
    config: BeamConfig

    def kept_paths(self, request: Request) -> int | None:
        return self.width_if_chosen(request)

    def most_offered(self, request: Request) -> int | None:
        return 0

    def grow_chosen(self, fed: TreeBuilder, root: DraftLogits, depth: int, drafter: str) -> Growing:
        return grow_beam(fed, root, depth, self.config.width, drafter)


def grow_beam(fed: TreeBuilder, root: DraftLogits, depth: int, width: int, drafter: str) -> Growing:
    """The ``width`` most probable paths of every level; children are chosen, not drawn."""
    yield from grow_levels(fed, root, depth, width, drafter)
    return fed.build().tree
