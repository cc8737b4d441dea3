"""The cycles that another tree would have made of the same answer, from the first token to the last.

A deep cycle tells of every token that it reached whether the drafter had it, and with which rank in its level. A cycle
with a smaller tree, and one whose draft was accepted as deep as was asked, leave the next token open: the drafter was
not asked for it. Such a token is had as often as deep cycles had the one behind as many accepted ones. So where cycles
begin is a distribution over the places of the answer, and every place counts with the same weight, whether the
drafter knew the text there or not. To leave out what smaller trees answered would not do: they take a third of the
cycles, but few of the tokens where drafts are long.

Budgets end with the answer: where k tokens are left to ``max_new_tokens`` no tree is deeper than k - 1 (the scheduler
sees to that), so the last cycles yield less than the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from spec_sdk.advice.cycles import Cycle, Piece, Shape


class DraftedRanks:
    """How often the drafter had the next token, by its rank and by the tokens accepted before it in the same cycle.

    From the cycles that were asked for ``deepest`` levels, and drafted one more than was accepted.
    """

    chance: Callable[[int, int, int], float]

    def __init__(self, cycles: Sequence[Cycle], deepest: int) -> None:
        self._ranks: dict[int, list[int | None]] = {}
        for cycle in cycles:
            if cycle.asked < deepest:
                continue
            for accepted in range(min(cycle.drafted, len(cycle.ranks) + 1)):
                rank = cycle.ranks[accepted] if accepted < len(cycle.ranks) else None
                self._ranks.setdefault(accepted, []).append(rank)
        self.chance = cache(self._chance)

    def _chance(self, accepted: int, width: int, missed: int) -> float:
        """That the token behind ``accepted`` ones is among the first ``width`` of its level, though not among the first
        ``missed``; of those behind fewer accepted ones, where none was drafted so deep.
        """
        seen = self._ranks.get(max((depth for depth in self._ranks if depth <= accepted), default=-1), [])
        left = [rank for rank in seen if rank is None or rank > missed]
        return sum(rank is not None and rank <= width for rank in left) / len(left) if left else 0.0


@dataclass(frozen=True)
class _Place:
    """A token of the answer. ``rank``: in the draft, None if it was not there. ``missed``: the nodes of its level,
    where a larger tree might have had it: 0 if the drafter was not asked for it. None: no tree would have it.

    ``accepted``: tokens of the same cycle before it. ``level_sizes``: of what would be drafted here.
    """

    prefix: int
    rank: int | None
    missed: int | None
    accepted: int
    level_sizes: tuple[int, ...]

    def chance(self, width: int, ranks: DraftedRanks) -> float:
        """That the drafter has it among the first ``width``."""
        if self.rank is not None:
            return float(self.rank <= width)
        if self.missed is None or width <= self.missed:
            return 0.0
        return ranks.chance(self.accepted, width, self.missed)


def recut(
    cycles: Sequence[Cycle], shape: Shape, deepest: int, ranks: DraftedRanks, most_tokens: int | None = None
) -> list[Piece]:
    """One answer's ``cycles`` cut anew, as if every tree had been of ``shape``: their expected tokens, times their
    shares, are those of the answer.

    ``deepest``: the depth that was asked for where shapes are told apart. ``most_tokens``: those that the answer was
    granted, where it ends for want of them. A drafter is taken to be right about the same tokens wherever its trees
    begin.
    """
    places = _places(cycles, deepest)
    shares = [1.0] + [0.0] * len(places)
    pieces = []
    for at, place in enumerate(places):
        if not shares[at]:
            continue
        granted = shape.depth if most_tokens is None else min(shape.depth, most_tokens - at - 1)
        sizes = place.level_sizes[:granted]
        going_on, tokens = 1.0, 0.0
        for kept in range(len(sizes) + 1):
            tokens += going_on
            last = kept == len(sizes) or at + kept + 1 >= len(places)
            # a level further up may have had fewer nodes than the one that the token was in
            had = 0.0 if last else places[at + kept].chance(min(shape.width, sizes[kept]), ranks)
            shares[min(at + kept + 1, len(places))] += shares[at] * going_on * (1 - had)
            going_on *= had
            if not going_on:
                break
        nodes = 1 + sum(min(size, shape.width) for size in sizes)
        pieces.append(Piece(place.prefix, granted, len(sizes), nodes, tokens, shares[at]))
    return pieces


def _places(cycles: Sequence[Cycle], deepest: int) -> list[_Place]:
    drafted = [cycle.level_sizes for cycle in cycles if cycle.asked >= deepest and cycle.drafted]
    usual = drafted[0] if drafted else None
    places: list[_Place] = []
    for cycle in cycles:
        deep, sizes = cycle.asked >= deepest, cycle.level_sizes
        if deep:
            usual = sizes or usual
        elif cycle.drafted == cycle.asked and usual is not None:
            # it would have gone on, had it been asked
            sizes = usual
        for i in range(cycle.tokens):
            if i < len(cycle.ranks):
                rank, missed = cycle.ranks[i], None
            elif i < cycle.drafted:
                rank, missed = None, None if deep else cycle.level_sizes[i]
            else:
                # behind all levels: not asked for, or the drafter had no more to say
                rank, missed = None, 0 if i == cycle.asked else None
            places.append(_Place(cycle.prefix + i, rank, missed, i, sizes))
    return places
