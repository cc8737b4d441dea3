"""All levels of trees whose shape is known before anything is drafted: picked and fed without asking the host between.

A level by itself costs an upload, a launch, and a read that waits for the device. Here the tokens of a level are
picked where its logits are, and written into the inputs of the next pass; so the levels are one program, which a graph
may capture, and are read once.

Legend: B requests, K nodes of a level, W children of each, X nodes of all levels, R tokens that can be drafted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
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


@functools.lru_cache(maxsize=256)
def levels_of(widths: tuple[int, ...]) -> tuple[Level, ...]:
    """The levels that are fed of a tree whose nodes have ``widths`` children, level by level: all but the last."""
    tree, frontier, levels = TreeBuilder(0), [0], []
    for width in widths[:-1]:
        # any tokens that differ
        frontier = [tree.add(parent, token, "chosen") for parent in frontier for token in range(width)]
        start, end = tree.intervals()
        levels.append(Level(tuple(tree.depth), tuple(start), tuple(end), len(frontier)))
    return tuple(levels)


@dataclass(frozen=True)
class DraftedLevel:
    """The children of all nodes of a level: log-probabilities, float32, and tokens, int64, [K, W], in host memory."""

    logprob_KW: torch.Tensor
    token_KW: torch.Tensor


@dataclass(frozen=True)
class DraftLevels:
    """Trees of one shape that are to be drafted behind committed roots.

    ``widths``: children of every node, level by level; they are its most probable tokens, the likeliest first.
    ``root_BR``: logits after each request's last token. ``limit``: only the first so many of the R are drafted.
    ``inputs``: of the passes that feed the levels but the last, whose tokens are not known; host integers.
    """

    widths: tuple[int, ...]
    root_BR: torch.Tensor
    limit: int
    inputs: tuple[PassInputs, ...]

    @staticmethod
    def of(widths: Sequence[int], root_BR: torch.Tensor, limit: int, places: Sequence[tuple[int, int]]) -> DraftLevels:
        """``places``: cache slot and prefix of each request."""
        inputs = []
        for level in levels_of(tuple(widths)):
            unknown = [0] * len(level.depth)
            rows = [
                RequestRows.growing(slot, prefix, unknown, level.depth, level.start, level.end, level.new)
                for slot, prefix in places
            ]
            # in host memory: all levels travel together
            inputs.append(PassInputs.of("growing", rows, torch.device("cpu")))
        return DraftLevels(tuple(widths), root_BR, limit, tuple(inputs))

    @property
    def flat(self) -> torch.Tensor:
        """The integers of all passes, one after the other."""
        return torch.cat([inputs.flat for inputs in self.inputs if inputs.flat is not None])

    @property
    def columns(self) -> int:
        """Most cache columns that a row sees."""
        return max(inputs.columns or 0 for inputs in self.inputs)

    def over(self, flat: torch.Tensor, root_BR: torch.Tensor, columns: int) -> DraftLevels:
        """The same levels with their integers in ``flat``, which whoever writes there changes."""
        sizes = [0 if inputs.flat is None else inputs.flat.numel() for inputs in self.inputs]
        placed = tuple(
            PassInputs.over(part, inputs.kind, inputs.batch, inputs.width, inputs.key_end_BT.shape[1], columns)
            for part, inputs in zip(torch.split(flat, sizes), self.inputs, strict=True)
        )
        return DraftLevels(self.widths, root_BR, self.limit, placed)

    def run(
        self, logits_of: Callable[[PassInputs], torch.Tensor], ops: Ops, token_R: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pick and feed level after level; ``logits_of`` a pass are [B, K, R]. Returns log-probabilities, float32, and
        tokens, int64, of all nodes, level by level: [B, X] each. ``token_R``: the tokens that the logits are of; None:
        0 … R − 1. Waits for nothing.
        """
        logits_XR, tops = self.root_BR, []
        for level, width in enumerate(self.widths):
            logprob_XW, place_XW = ops.top_log_probabilities(logits_XR[:, : self.limit], width)
            place_BX = place_XW.view(len(self.root_BR), -1)
            token_BX = place_BX if token_R is None else token_R[place_BX]
            tops.append((logprob_XW.view(token_BX.shape), token_BX))
            if level < len(self.inputs):
                inputs = self.inputs[level]
                # views of the integers that the pass reads
                inputs.token_BN.copy_(token_BX)
                logits_XR = logits_of(inputs).flatten(0, 1)
        logprob_BX, token_BX = (torch.cat(part, 1) for part in zip(*tops, strict=True))
        return logprob_BX, token_BX

    def split(self, of_nodes_X: torch.Tensor) -> list[torch.Tensor]:
        """What :meth:`run` gives of one request's nodes, by level: [K, W] each."""
        counts = [math.prod(self.widths[: level + 1]) for level in range(len(self.widths))]
        levels = torch.split(of_nodes_X, counts)
        return [part.view(-1, width) for part, width in zip(levels, self.widths, strict=True)]
