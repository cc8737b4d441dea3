"""A token tree of the most probable paths, or a drawn chain, fed in one call before its growth asked for any level.

Which levels a growth will ask for is guessed by the rule that it says it follows. Whoever lets it grow compares what it
asks for with what was fed, so a wrong guess costs time and nothing else.

Legend: N rows of a pass, K nodes of a level, W children of each, R tokens that can be drafted, X nodes that were fed,
M model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from spec_sdk.ops import host_reads
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.rows import Shaping

NEGLIGIBLE_GAIN = 1e-12
"""Expected tokens that may be the rounding of a sum: of two trees that differ by no more the smaller is kept."""


class TreeArrays(Protocol):
    """What :class:`~spec_sdk.tree.TokenTree` has of its nodes."""

    @property
    def token_N(self) -> Sequence[int]: ...

    @property
    def depth_N(self) -> Sequence[int]: ...

    @property
    def end_N(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class PathDraws:
    """How the tokens of a chain are drawn: by inversion in the order of tokens, of those below ``vocabulary``.

    ``uniforms``: a random number for each level. Logits are divided by ``temperature`` before ``shaping`` makes
    probabilities of them.
    """

    uniforms: tuple[float, ...]
    shaping: Shaping
    temperature: float
    vocabulary: int


@dataclass(frozen=True)
class ClosedTrees:
    """Token trees of B requests on a device, all of each, on their way to the host.

    ``node_B3N`` int32, in pre-order: tokens, depths, and ends as :attr:`TokenTree.end_N`. What stands behind a tree's
    nodes is 0, and so is the root's token, which the host knows. ``numbers``: the same at the end of each request's row
    of what is being read, [B, …].
    """

    node_B3N: torch.Tensor
    numbers: host_reads.BegunRead

    def are(self, trees: Sequence[TreeArrays]) -> bool:
        """Whether these are the trees, their roots' tokens not compared. Waits for what is being read."""
        B, _, N = self.node_B3N.shape
        on_host_B3N = self.numbers.wait()[:, -3 * N :].long().view(B, 3, N)
        if len(trees) != B:
            return False
        for node_3N, tree in zip(on_host_B3N, trees, strict=True):
            token, depth, end = node_3N[:, : int(node_3N[2, 0])].tolist()
            if [token[1:], depth, end] != [[*tree.token_N[1:]], [*tree.depth_N], [*tree.end_N]]:
                return False
        return True


@dataclass(frozen=True)
class TreeClosing:
    """Which nodes a tree has when nothing of it is fed any more, for whoever wants it before the host has read it.

    ``most``: of all children that the fed nodes have, the so many most probable; 0: the paths that were picked, and as
    many children of the last level. ``node_costs``: as of :class:`~spec_sdk.contracts.Budget`; of these nodes the most
    probable with the largest expected gain. ``tell`` is called with the trees of all requests of a launch, once, right
    after it.
    """

    most: int
    node_costs: tuple[float, ...]
    tell: Callable[[ClosedTrees], None]


@dataclass(frozen=True)
class ProbablePaths:
    """Of every level the ``width`` most probable paths are fed, ``depth`` levels at most, those of the last one not.

    ``nodes``: most nodes of the tree, the root included; every level gets an equal share of what is left.
    ``least_reach``: levels that are reached less probably need not be fed; ``most_levels``: nor more than so many.
    ``vocabulary``: the tokens that may be drafted; None: all. ``groups``: of consecutive layers whose attention reads
    one hidden state, the one that enters the group, in the passes of levels; None: of each its own. ``draws``: the one
    path's tokens are drawn, and how. ``closing``: the tree is wanted that these levels make; whoever cannot tell it
    takes no notice.
    """

    width: int
    depth: int
    nodes: int
    least_reach: float = 0.0
    most_levels: int | None = None
    vocabulary: int | None = None
    groups: tuple[tuple[int, ...], ...] | None = None
    draws: PathDraws | None = None
    closing: TreeClosing | None = None

    @staticmethod
    def drawn(draws: PathDraws) -> ProbablePaths:
        """A chain of as many tokens as there are random numbers."""
        depth = len(draws.uniforms)
        return ProbablePaths(1, depth, depth + 1, draws=draws)

    @property
    def most_fed(self) -> int:
        """Most nodes that are fed, the root included: X."""
        return min(1 + (self.depth - 1) * self.width, self.nodes)


@dataclass(frozen=True)
class RowsToCommit:
    """What a slot's prefix is followed by, N ``tokens`` of which the last one is a tree's root, and the features
    [N, M] that a head is fed with them.
    """

    slot: int
    prefix: int
    tokens: Sequence[int]
    features_NM: torch.Tensor | None = None


@dataclass(frozen=True)
class OutputRows:
    """Output heads whose logits stand side by side, and the tokens [R] that they are of; None: all in order."""

    heads: Sequence[Projection]
    token_R: torch.Tensor | None


@dataclass(frozen=True)
class ToppedLogits(DraftLogits):
    """Logits whose most probable children are in host memory already: ``logprob_KW``, ``token_KW``."""

    logprob_KW: torch.Tensor = field(kw_only=True)
    token_KW: torch.Tensor = field(kw_only=True)

    def top(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if count > self.token_KW.shape[1]:
            return super().top(count)
        return self.logprob_KW[:, :count], self.token_KW[:, :count]

    def within(self, vocabulary: int) -> DraftLogits:
        if vocabulary >= self.vocabulary:
            return self if vocabulary == self.vocabulary else replace(self, vocabulary=vocabulary)
        return DraftLogits(self.logits_KR, self.token_R, self.vocabulary, self.ops).within(vocabulary)


@dataclass(frozen=True)
class GrownLevel:
    """K nodes that were fed together: their tokens, their parents by number, the root's being 0, and their logits."""

    token_K: Sequence[int]
    parent_K: Sequence[int]
    logits: DraftLogits


@dataclass(frozen=True)
class GrownPaths:
    """The logits of a root, K = 1, and the levels behind it that were fed, maybe none. Where a chain was drawn, logits
    have :attr:`DraftLogits.drawn_KW`, of the last level too.

    ``state_XM``: of a head, what the root and the nodes feed their children.
    """

    root: DraftLogits
    levels: Sequence[GrownLevel] = ()
    state_XM: torch.Tensor | None = None


PathGrower = Callable[[RowsToCommit, Any, OutputRows, ProbablePaths], GrownPaths | None]
"""Rows, a cache with room for them and for the tree, output rows and paths → what grew; None, and nothing done, for
what it does not take. K and V of all fed rows are in the cache, as after a pass of each level. Raises UnusableLogits
where a token cannot be drawn.
"""
