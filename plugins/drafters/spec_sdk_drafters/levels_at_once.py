"""Levels that were drafted at once, given to a growth one after the other as if each had been fed when it asked.

Legend: K nodes of a level, W children of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spec_sdk.contracts import DraftLogits, Request, TreeShape
from spec_sdk.errors import PluginFault, UnusableLogits
from spec_sdk.model.draft_levels import DraftedLevel
from spec_sdk.ops.inversion import next_uniform
from spec_sdk.ops.kept_tokens import numbers_of
from spec_sdk_drafters.growing_draft import GrowingDraft

MOST_DRAWN = 128
"""Nodes of a tree that a device draws."""


@dataclass(frozen=True)
class KnownTops(DraftLogits):
    """Logits of which the most probable children are in host memory already, and nothing else is known."""

    level: DraftedLevel = field(kw_only=True)

    def top(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        width, logprob_KW = self.level.token_KW.shape[1], self.level.logprob_KW
        if count != width or logprob_KW is None:
            raise PluginFault(f"a growth of a fixed shape asked for {count} children, not {width}")
        return logprob_KW, self.level.token_KW

    @property
    def full_KV(self) -> torch.Tensor:
        raise PluginFault("a growth of a fixed shape asked for whole rows of logits, not for children")


def known_logits(level: DraftedLevel, vocabulary: int) -> DraftLogits | None:
    """A level as a growth is given it; None where some node had fewer tokens than were to be drawn. Raises
    UnusableLogits where the device could not draw.
    """
    if level.logits_KR is None:
        return KnownTops(torch.empty((len(level.token_KW), 0)), None, vocabulary, level=level)
    drawn_KW = tuple(map(tuple, level.token_KW.tolist()))
    if any(first < 0 for first, *_ in drawn_KW):
        raise UnusableLogits(0)
    if any(min(tokens) < 0 for tokens in drawn_KW):
        return None
    return DraftLogits(level.logits_KR, None, vocabulary, drawn_KW=drawn_KW)


@dataclass
class Tries:
    """Of one request's drawn trees: how many were drafted at once, and how many of them in vain, since filters had left
    some node too few tokens. Such a tree is drafted once more, level by level.
    """

    made: int = 0
    in_vain: int = 0

    @property
    def pay(self) -> bool:
        """Whether it is worth another one: where it is in vain twice in a row, or one time in three, it costs more than
        it saves.
        """
        return 3 * self.in_vain <= self.made + 2

    def note(self, ran_out: bool) -> None:
        self.made += 1
        self.in_vain += ran_out


def draws_at_once(shape: TreeShape, request: Request) -> bool:
    """Whether a device may draw the children of a tree: by a sampling that it can be told, and not so many that their
    draws are a program too long. At temperature 0 a node has one token, and under top-k no more than that leaves.
    """
    recipe = request.sampler.recipe
    if recipe is None or sum(shape.nodes) > MOST_DRAWN or 0 < recipe.shaping.top_k < max(shape.widths):
        return False
    return max(shape.widths) == 1 or not request.sampler.greedy


def draws_of(request: Request, draws: int) -> list[float]:
    """A random number for each of so many draws, the request's next, and the numbers of its sampling."""
    recipe = request.sampler.recipe
    assert recipe is not None
    return [*uniforms_of(request, draws), *numbers_of(recipe.shaping)]


def uniforms_of(request: Request, draws: int) -> list[float]:
    """The request's next random numbers, one for each draw."""
    return [next_uniform(request.rng) for _ in range(draws)]


def grow_known(draft: GrowingDraft, levels: Sequence[DraftedLevel], known: Sequence[DraftLogits]) -> None:
    """Let a tree grow to its end that began with the first of these levels, ``known`` as a growth is given them.

    Raises PluginFault for a growth that asks for other levels, or adds other tokens than were fed.
    """
    asks = draft.advance(None)
    for logits in known[1:]:
        if not asks or draft.asked != len(logits):
            raise PluginFault("a growth of a fixed shape fed other levels than those of its shape")
        asks = draft.advance(logits)
    if asks:
        raise PluginFault("a growth of a fixed shape asked for a level more than its shape has")
    fed = [token for level in levels[:-1] for token in level.token_KW.flatten().tolist()]
    if draft.tree.token[1 : len(fed) + 1] != fed:
        raise PluginFault("a growth of a fixed shape added other tokens than those that were drafted for it")
