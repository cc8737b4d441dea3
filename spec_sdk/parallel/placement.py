"""Which ranks hold the target, and which the draft model: what a backend's option ``groups`` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.counted import counted
from spec_sdk.errors import UserError, did_you_mean

WHERE = "backend.groups"
NAMES = ("target", "draft")


@dataclass(frozen=True)
class Placement:
    """``first``: the ranks of the leader's device group, where the target is held by two; else None, and by all ranks.

    ``draft``: the ranks that hold the draft model; None: those that its drafter takes by itself.
    """

    first: tuple[int, ...] | None = None
    draft: tuple[int, ...] | None = None


def placement(groups: Mapping[str, Any], size: int, two: bool) -> Placement:
    """Who holds what among ``size`` ranks. ``two``: the target is held by two device groups.

    ``groups``: ``target``, a list of all ranks, or two lists of them for two device groups; ``draft``, a list of ranks.
    Either may be left out. Raises UserError, one line, for anything else.
    """
    for name in groups:
        if name not in NAMES:
            raise UserError(f"{WHERE}: has no {name!r}{did_you_mean(str(name), NAMES)}; it has target and draft")
    target, draft = groups.get("target"), groups.get("draft")
    return Placement(
        None if target is None else _first(target, size, two),
        None if draft is None else _ranks(draft, f"{WHERE}.draft", size, led=True),
    )


def _first(target: Any, size: int, two: bool) -> tuple[int, ...] | None:
    where = f"{WHERE}.target"
    nested = isinstance(target, Sequence) and not isinstance(target, str) and any(isinstance(x, list) for x in target)
    if nested != two:
        wanted = "two lists of ranks, since speculation on attention takes two device groups"
        alone = "a list of ranks; two lists are two device groups, for speculation on attention (predictor=...)"
        raise UserError(f"{where}: {target!r} is not {wanted if two else alone}")
    if two and len(target) != 2:
        raise UserError(f"{where}: has {counted(len(target), 'group')}; speculation on attention takes two")
    lists = target if two else [target]
    members = [_ranks(ranks, where, size, led=i == 0) for i, ranks in enumerate(lists)]
    named = [rank for ranks in members for rank in ranks]
    if len(set(named)) < len(named):
        raise UserError(f"{where}: {target!r} has a rank in both groups")
    left = [rank for rank in range(size) if rank not in named]
    if left:
        raise UserError(
            f"{where}: rank {left[0]} is not in it, and {size} processes were launched; every rank holds a part"
        )
    if two and len(members[0]) != len(members[1]):
        raise UserError(f"{where}: groups of {len(members[0])} and {len(members[1])} ranks; they must be of one size")
    return members[0] if two else None


def _ranks(value: Any, where: str, size: int, led: bool) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(rank) is int for rank in value):
        raise UserError(f"{where}: {value!r} is not a list of ranks, such as {list(range(size))}")
    for rank in value:
        if not 0 <= rank < size:
            raise UserError(f"{where}: there is no rank {rank} among {size} launched; the last is {size - 1}")
        if value.count(rank) > 1:
            raise UserError(f"{where}: {value!r} has rank {rank} twice")
    if not value or (led and 0 not in value):
        raise UserError(f"{where}: {value!r} is without rank 0, which leads" if led else f"{where}: a group is empty")
    return tuple(sorted(value))
