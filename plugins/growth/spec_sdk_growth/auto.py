"""The default growth: chosen or drawn, whichever is accepted more often at this temperature."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import DraftLogits, Growing, Growth, Request, TreeShape
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.beam import grow_beam
from spec_sdk_growth.options import (
    affordable_widths,
    check_draws,
    children_of,
    children_option,
    shape_of,
    temperature_option,
    width_option,
)
from spec_sdk_growth.static import grow_static


@dataclass
class AutoConfig:
    """Options of ``drafter.growth=auto``."""

    width: int = width_option()
    children: str = children_option()
    temperature: float = temperature_option()

    def __post_init__(self) -> None:
        check_draws(self.children, self.temperature, "auto")


class AutoGrowth(Growth):
    """``beam`` where children are chosen, and ``width`` drawn paths that part at the root where they are drawn."""

    name = "auto"
    Config = AutoConfig
    config: AutoConfig

    @property
    def branches(self) -> bool:
        return self.config.width > 1

    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape | None:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=False)
        if self.branches and children == "top_k":
            return None
        return shape_of(affordable_widths([self.config.width, 1], depth, max_nodes), children, self.config.temperature)

    def kept_paths(self, request: Request) -> int | None:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=False)
        return self.config.width if children == "top_k" else None

    def most_offered(self, request: Request) -> int | None:
        return 0

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        width = self.config.width
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=False)
        if children == "top_k":
            return grow_beam(fed, root, depth, width, drafter)
        return grow_static(fed, root, depth, [width, 1], children, self.config.temperature, request, drafter)
