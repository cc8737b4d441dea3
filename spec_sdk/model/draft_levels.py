"""All levels of trees whose shape is known before anything is drafted: picked and fed without asking the host between.

A level by itself costs an upload, a launch, and a read that waits for the device. Here the tokens of a level are
picked where its logits are, and written into the inputs of the next pass; so the levels are one program, which a graph
may capture, and are read once.

Legend: B requests, K nodes of a level, W children of each, X nodes of all levels, P of them with children and the
root, R tokens that can be drafted.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.ops.inversion import draw_rows
from spec_sdk.ops.kept_tokens import NUMBERS, filters, kept
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows, placed_in
from spec_sdk.ops.uploads import to_device
from spec_sdk.tree import TreeBuilder


@dataclass(frozen=True)
class Level:
    """What a pass that feeds a level knows of a tree of this shape: depths and intervals of all nodes so far, in the
    order of creation, of which the ``new`` last ones are fed.
    """

    depth: tuple[int, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    new: int


def whole_levels(widths: Sequence[int]) -> Iterator[tuple[TreeBuilder, int]]:
    """A tree whose nodes have ``widths`` children, after each of its levels, and how many nodes that has. Its tokens
    are any that differ.
    """
    tree, frontier = TreeBuilder(0), [0]
    for width in widths:
        frontier = [tree.add(parent, token, "chosen") for parent in frontier for token in range(width)]
        yield tree, len(frontier)


@functools.lru_cache(maxsize=256)
def levels_of(widths: tuple[int, ...]) -> tuple[Level, ...]:
    """The levels that are fed of a tree whose nodes have ``widths`` children, level by level: all but the last."""
    levels = []
    for tree, new in whole_levels(widths[:-1]):
        start, end = tree.intervals()
        levels.append(Level(tuple(tree.depth), tuple(start), tuple(end), new))
    return tuple(levels)


@functools.lru_cache(maxsize=256)
def nodes_of(widths: tuple[int, ...]) -> torch.Tensor:
    """Of all nodes but the root, in pre-order, which one it is in the order of creation, its depth and its end
    [3, X], int32.
    """
    *_, (tree, _) = whole_levels(widths)
    built = tree.build()
    created = sorted(range(1, tree.size), key=lambda node: built.preorder[node])
    return torch.tensor([[node - 1 for node in created], built.tree.depth_N[1:], built.tree.end_N[1:]]).int()


@dataclass(frozen=True)
class TreeShape:
    """The shape of a tree that is known before anything is drafted.

    ``widths``: children of every node, level by level. They are its most probable tokens, the likeliest first; or,
    with a ``draw_temperature``, drawn by the request's sampling, all different, from logits that are divided by it
    first.
    """

    widths: tuple[int, ...]
    draw_temperature: float | None = None

    @property
    def drawn(self) -> bool:
        return self.draw_temperature is not None

    @property
    def nodes(self) -> tuple[int, ...]:
        """How many there are of each level below the root."""
        return tuple(itertools.accumulate(self.widths, operator.mul))

    def closed(self, token_BX: torch.Tensor) -> ClosedTrees:
        """Whole trees with these tokens, level by level, which may be on a device."""
        order_X, depth_X, end_X = to_device(nodes_of(self.widths), token_BX.device)
        known_B2X = torch.stack((depth_X, end_X)).expand(len(token_BX), -1, -1)
        node_B3N = F.pad(torch.cat((token_BX.int()[:, None, order_X], known_B2X), 1), (1, 0))
        node_B3N[:, 2, 0] = node_B3N.shape[2]
        return ClosedTrees(node_B3N, host_reads.begin(node_B3N.flatten(1)))


@dataclass(frozen=True)
class DraftedLevel:
    """The children of all K nodes of a level: their tokens [K, W], int64, in host memory. Of chosen ones also the
    log-probabilities [K, W], float32, there; of drawn ones, in the order of drawing, the nodes' logits [K, R], where
    the model left them. -1 stands for a token that could not be drawn: there was none left, or logits are unusable.
    """

    token_KW: torch.Tensor
    logprob_KW: torch.Tensor | None = None
    logits_KR: torch.Tensor | None = None


@dataclass(frozen=True)
class DraftLevels:
    """Trees of one shape that are to be drafted behind committed roots.

    ``root_BR``: logits after each request's last token. ``limit``: only the first so many of the R are drafted.
    ``inputs``: of the passes that feed the levels but the last, whose tokens are not known; host integers. ``draw_BX``
    float64, where children are drawn: a random number for each node, level by level, and last the numbers of the
    request's sampling (:func:`~spec_sdk.ops.kept_tokens.numbers_of`); else [B, 0]. ``filtered``: whether one of them
    has top-k, top-p or min-p.
    """

    shape: TreeShape
    root_BR: torch.Tensor
    limit: int
    inputs: tuple[PassInputs, ...]
    draw_BX: torch.Tensor
    filtered: bool = False

    @staticmethod
    def of(
        shape: TreeShape,
        root_BR: torch.Tensor,
        limit: int,
        places: Sequence[tuple[int, int]],
        draws: Sequence[Sequence[float]] = (),
    ) -> DraftLevels:
        """``places``: cache slot and prefix of each request. ``draws``: the numbers of ``draw_BX``."""
        inputs = []
        for level in levels_of(shape.widths):
            unknown = [0] * len(level.depth)
            rows = [
                RequestRows.growing(slot, prefix, unknown, level.depth, level.start, level.end, level.new)
                for slot, prefix in places
            ]
            # in host memory: all levels travel together
            inputs.append(PassInputs.of("growing", rows, torch.device("cpu")))
        draw_BX = torch.tensor(draws or [[]] * len(places), dtype=torch.float64)
        filtered = any(filters(numbers[-NUMBERS:]) for numbers in draws)
        return DraftLevels(shape, root_BR, limit, tuple(inputs), draw_BX, filtered)

    @property
    def flat(self) -> torch.Tensor:
        """The integers of all passes, one after the other."""
        return torch.cat([inputs.flat for inputs in self.inputs if inputs.flat is not None])

    @property
    def columns(self) -> int:
        """Most cache columns that a row sees."""
        return max(inputs.columns or 0 for inputs in self.inputs)

    def over(self, flat: torch.Tensor, root_BR: torch.Tensor, draw_BX: torch.Tensor, columns: int) -> DraftLevels:
        """The same levels with their numbers in these tensors, which whoever writes there changes."""
        placed = tuple(placed_in(flat, self.inputs, columns))
        return DraftLevels(self.shape, root_BR, self.limit, placed, draw_BX, self.filtered)

    def run(
        self, logits_of: Callable[[PassInputs], torch.Tensor], ops: Ops, token_R: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pick and feed level after level; ``logits_of`` a pass are [B, K, R]. Waits for nothing.

        Returns of all nodes, level by level, the tokens, int64 [B, X], -1 for those that could not be drawn; and before
        them the log-probabilities, float32 [B, X], or the logits that they were drawn from, [B, P, R].
        ``token_R``: the tokens that the logits are of; None: 0 … R − 1.
        """
        logits_XR, values, tokens = self.root_BR, list[torch.Tensor](), list[torch.Tensor]()
        B = len(self.root_BR)
        for level, width in enumerate(self.shape.widths):
            logits_XR = logits_XR[:, : self.limit]
            if self.shape.drawn:
                values.append(logits_XR.view(B, -1, logits_XR.shape[1]))
                place_BX = self._drawn(logits_XR, level, ops).view(B, -1)
            else:
                logprob_XW, place_XW = ops.top_log_probabilities(logits_XR, width)
                values.append(logprob_XW.view(B, -1))
                place_BX = place_XW.view(B, -1)
            tokens.append(place_BX if token_R is None else token_R[place_BX])
            if level < len(self.inputs):
                inputs = self.inputs[level]
                # views of the integers that the pass reads
                inputs.token_BN.copy_(tokens[-1].clamp_min(0))
                logits_XR = logits_of(inputs).flatten(0, 1)
        return torch.cat(values, 1), torch.cat(tokens, 1)

    def _drawn(self, logits_KR: torch.Tensor, level: int, ops: Ops) -> torch.Tensor:
        """Children [K, W] of all requests' nodes of a level, int64: each is drawn from what those before it leave."""
        assert self.shape.draw_temperature is not None
        nodes, width = self.shape.nodes, self.shape.widths[level]
        first, count = sum(nodes[:level]), nodes[level]
        uniform_KW = self.draw_BX[:, first : first + count].reshape(-1, width)
        shaping_B4 = self.draw_BX[:, -NUMBERS:]
        temperature_B1 = shaping_B4[:, :1].float().clamp_min(torch.finfo(torch.float32).tiny)
        temperature_K1 = temperature_B1.repeat_interleave(count // width, 0)
        score_KR = logits_KR.float() / self.shape.draw_temperature
        if self.filtered:
            kept_KR = kept(score_KR, *ops.least_kept(score_KR, shaping_B4.contiguous()))
            # NaN is not kept, and must not vanish
            score_KR = score_KR.masked_fill(~kept_KR & ~score_KR.isnan(), float("-inf"))
        left_KR = ((score_KR - score_KR.amax(-1, keepdim=True)) / temperature_K1).softmax(-1)
        drawn = list[torch.Tensor]()
        for child in range(width):
            drawn.append(draw_rows(left_KR, uniform_KW[:, child]))
            if child < width - 1:
                left_KR = left_KR.scatter(1, drawn[-1].clamp_min(0)[:, None], 0.0)
        return torch.stack(drawn, 1)

    def split(self, values: torch.Tensor, token_X: torch.Tensor) -> list[DraftedLevel]:
        """What :meth:`run` gives of one request's nodes, by level."""
        counts = list(self.shape.nodes)
        tokens = [
            token.view(-1, width) for width, token in zip(self.shape.widths, torch.split(token_X, counts), strict=True)
        ]
        if self.shape.drawn:
            of_parents = torch.split(values, [1, *counts[:-1]])
            return [
                DraftedLevel(token_KW, logits_KR=logits_KR)
                for token_KW, logits_KR in zip(tokens, of_parents, strict=True)
            ]
        of_nodes = torch.split(values, counts)
        return [
            DraftedLevel(token_KW, value.view_as(token_KW)) for token_KW, value in zip(tokens, of_nodes, strict=True)
        ]
