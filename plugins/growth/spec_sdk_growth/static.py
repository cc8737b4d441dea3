"""Static growth: as many children per node as a list of widths says.

Legend: K frontier nodes, W children of a node, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import LARGEST_TREE, DraftLogits, Growing, Growth, Request, Sampler, TreeShape, option
from spec_sdk.errors import UserError
from spec_sdk.ops.host_reads import count as count_read
from spec_sdk.tree import DraftDistribution, DrawKind, TreeBuilder
from spec_sdk_growth.options import (
    Children,
    affordable_widths,
    check_draws,
    children_of,
    children_option,
    shape_of,
    temperature_option,
    tempered,
)


@dataclass
class StaticConfig:
    """Options of ``drafter.growth=static``."""

    widths: list[int] = option(
        [2, 2, 1],
        "children per node, level by level, the last entry for all deeper levels",
        minimum=1,
        maximum=LARGEST_TREE - 1,
    )
    children: str = children_option()
    temperature: float = temperature_option()

    def __post_init__(self) -> None:
        check_draws(self.children, self.temperature, "static")
        if not self.widths:
            raise UserError("drafter.widths: no level is listed; give one or more numbers of children, such as [2,2,1]")


class StaticGrowth(Growth):
    """Every node of level d gets ``widths[d]`` children; a budget of fewer nodes makes the deepest levels narrower."""

    name = "static"
    Config = StaticConfig
    config: StaticConfig

    @property
    def branches(self) -> bool:
        return any(width > 1 for width in self.config.widths)

    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape | None:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=False)
        widths = affordable_widths(self.config.widths, depth, max_nodes)
        return shape_of(widths, children, self.config.temperature)

    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        children = children_of(self.config.children, request.sampler.greedy, self.branches, prunes=False)
        c = self.config
        return grow_static(fed, root, depth, c.widths, children, c.temperature, request, drafter)


def grow_static(
    fed: TreeBuilder,
    root: DraftLogits,
    depth: int,
    widths: Sequence[int],
    children: Children,
    temperature: float,
    request: Request,
    drafter: str,
) -> Growing:
    """Children are the most probable ones, or drawn with the request's sampler and random numbers.

    ``temperature``: of draws. A draw carries the distribution that it was made from, so verification stays lossless.

    A tree too large for the budget becomes narrower, not shallower, before anything is drawn.

    Draws with replacement may coincide, and a distribution may have fewer tokens than are asked for without
    replacement: then there are fewer children. Widths of 1, drawn, are the chain of ordinary speculative sampling.
    """
    widths = affordable_widths(widths, depth, fed.max_nodes)
    frontier = [0]
    logits = root
    for level in range(depth):
        if level:
            logits = yield len(frontier)
        first_new, count = fed.size, widths[level]
        if children == "top_k":
            logprob_KW, token_KW = logits.top(count)
            # without what a constraint rules out
            left_KW = (logprob_KW > float("-inf")).tolist()
            for node, tokens, left_W in zip(frontier, token_KW.tolist(), left_KW, strict=True):
                for token in [token for token, left in zip(tokens, left_W, strict=True) if left]:
                    fed.add(node, token, "chosen", drafter=drafter)
        else:
            if logits.drawn_KW is not None:
                _add_drawn(fed, frontier, logits, logits.drawn_KW, temperature, children, request, drafter)
            else:
                count_read()
                for k, node in enumerate(frontier):
                    distribution = _distribution(logits, k, temperature, request)
                    _draw_children(fed, node, distribution, count, children, request, drafter)
        frontier = list(range(first_new, fed.size))
    return fed.build().tree


def _distribution(logits: DraftLogits, k: int, temperature: float, request: Request) -> DraftDistribution:
    """What children of the level's k-th node are drawn from; a sampler that makes distributions in a way of its own is
    given logits of all tokens.
    """
    own = type(request.sampler).distribution is not Sampler.distribution
    return request.sampler.distribution(tempered(logits.full_KV[k] if own else logits.row(k), temperature))


def _add_drawn(
    fed: TreeBuilder,
    frontier: Sequence[int],
    logits: DraftLogits,
    drawn_KW: Sequence[Sequence[int]],
    temperature: float,
    kind: DrawKind,
    request: Request,
    drafter: str,
) -> None:
    """Add the children that were drawn already."""
    for k, (node, tokens) in enumerate(zip(frontier, drawn_KW, strict=True)):
        distribution = _distribution(logits, k, temperature, request)
        if logits.probability_K is not None:
            distribution.known[tokens[0]] = logits.probability_K[k]
        for token in tokens:
            fed.add(node, token, kind, distribution, drafter)


def _draw_children(
    fed: TreeBuilder,
    node: int,
    distribution: DraftDistribution,
    count: int,
    children: Children,
    request: Request,
    drafter: str,
) -> None:
    sampler, rng = request.sampler, request.rng
    if children == "with_replacement":
        for _ in range(count):
            fed.add(node, sampler.draw_from(distribution, rng), "with_replacement", distribution, drafter)
        return
    for token in sampler.draw_different(distribution, count, rng):
        fed.add(node, token, "without_replacement", distribution, drafter)
