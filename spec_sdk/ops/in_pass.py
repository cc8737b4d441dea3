"""Verdicts as the last operation of a pass: what a rule can be told before there are logits.

Where a pass is one launch, its verdicts may be part of it, so that a step is one launch and one read
(:meth:`spec_sdk.ops.Ops.accept_in_pass`).

Legend: B requests of a pass, N rows of a request, V vocabulary, X numbers of a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.rows import Decision, Shaping, Uniforms


@dataclass(frozen=True)
class Recipe:
    """How a kernel may work out a sampler's rows from logits alone: those of
    :class:`~spec_sdk.ops.FromLogits`, before there are any.

    At temperature 0 a row's token is its largest logit's, the lowest id on ties.
    """

    shaping: Shaping
    sigmoid: tuple[float, float] | None = None


@dataclass(frozen=True)
class UnscoredTree:
    """What a rule of acceptance will be given of a tree whose pass is yet to be made."""

    tree: DrawnTree
    recipe: Recipe
    uniforms: Uniforms


@dataclass(frozen=True)
class LogitsToCome:
    """The logits [B, N, V] that a pass will give, padding included. The same pass may come again with other trees."""

    requests: int
    rows: int
    vocabulary: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class DecisionsInPass:
    """Verdicts that a pass makes of its logits.

    ``epilogue``: the pass's last operation, logits [B, N, V] → [B, X]; the same object, or an equal one, for all passes
    that may share a graph. It waits for nothing. ``decision``: that on the b-th tree, from what the epilogue gave for
    it, in host memory; raises what the rule raises. ``root_tokens``: where all trees are roots alone, the tokens [B]
    that come after them, from what the epilogue gave, on its device; None where only the host can tell.
    """

    epilogue: Callable[[torch.Tensor], torch.Tensor]
    decision: Callable[[int, torch.Tensor], Decision]
    root_tokens: Callable[[torch.Tensor], torch.Tensor] | None = None


class OnceDrawn:
    """Random numbers that are taken when they are first asked for, and stay the same for whoever asks again.

    A pass that fails over one request is made again for the others, with the numbers that they had.
    """

    def __init__(self, uniforms: Uniforms) -> None:
        self._uniforms = uniforms
        self._drawn: Sequence[float] | None = None

    def __call__(self, count: int) -> Sequence[float]:
        if self._drawn is None:
            self._drawn = self._uniforms(count)
        assert len(self._drawn) == count, "a verdict takes as many random numbers as its tree has draws, and one"
        return self._drawn


def choices(logits: torch.Tensor) -> torch.Tensor:
    """Each row's token under greedy sampling, of logits [..., V]: the lowest id on ties, and -1 for unusable ones."""
    top, token = logits.max(-1)
    return torch.where(torch.isfinite(top), token, -1)


def greedy_in_pass(unscored: Sequence[UnscoredTree]) -> DecisionsInPass:
    """The rule ``greedy``: the pass gives the choices [B, N] of all its rows."""

    def decision(b: int, choice_N: torch.Tensor) -> Decision:
        tree = unscored[b].tree
        return followed(tree, choice_N[: tree.size].tolist())

    return DecisionsInPass(choices, decision, root_tokens=lambda choice_BN: choice_BN[:, 0])


def followed(tree: DrawnTree, choice_N: Sequence[int]) -> Decision:
    """The path that these tokens after each node lead along, and the token where it leaves the tree.

    Raises UnusableLogits, whose row is the node, for a node without a choice.
    """
    if min(choice_N) < 0:
        raise UnusableLogits(next(node for node, token in enumerate(choice_N) if token < 0))
    return follow(tree, lambda node: choice_N[node])


def follow(tree: DrawnTree, token_after: Callable[[int], int]) -> Decision:
    """The path of nodes that carry the token that comes after their parent, and the token where it leaves the tree."""
    path = [0]
    while True:
        token = token_after(path[-1])
        child = next((drawn.node for drawn in tree.draws_N[path[-1]] if tree.token_N[drawn.node] == token), None)
        if child is None:
            return path, token
        path.append(child)
