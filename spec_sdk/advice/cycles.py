"""What was seen of a cycle, and what cycles with smaller trees would have made of the same text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.policy.forced_token_costs import ForcedTokens


@dataclass(frozen=True)
class Shape:
    """A tree of ``depth`` levels of at most ``width`` nodes."""

    depth: int
    width: int

    @property
    def nodes(self) -> int:
        """With the root."""
        return 1 + self.depth * self.width


@dataclass(frozen=True)
class Cycle:
    """One cycle, as its event tells of it (:mod:`spec_sdk.events`). Times are in seconds.

    ``asked``: the depth of its budget. ``ranks``: of the accepted nodes in their levels, from 1. ``level_sizes``: nodes
    of each level below the root. ``verify_s``: the pass, the verdict and committing.
    """

    prefix: int
    asked: int
    nodes: int
    ranks: tuple[int, ...]
    level_sizes: tuple[int, ...]
    tokens: int
    draft_s: float
    verify_s: float

    @staticmethod
    def of(event: Mapping[str, Any]) -> Cycle:
        return Cycle(
            event["prefix"],
            event["budget"],
            event["tree_nodes"],
            tuple(event["accepted_ranks"]),
            tuple(event["level_sizes"]),
            # those that a constraint forced are the same whatever is drafted
            len(event["tokens"]) - ForcedTokens.of(event).emitted,
            event["draft_s"],
            event["verify_s"] + event["recover_s"],
        )

    @property
    def drafted(self) -> int:
        """Levels of its tree."""
        return len(self.level_sizes)

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s


def cycles_of(events: Iterable[Mapping[str, Any]]) -> list[Cycle]:
    """The cycles among ``events``, in order."""
    return [Cycle.of(event) for event in events if event["event"] == "cycle"]


@dataclass(frozen=True)
class Piece:
    """A cycle with another tree, as it would have been behind ``prefix`` tokens, and the ``share`` of all ways of
    cutting the answer in which one begins there. ``asked``: the depth of its budget. ``tokens``: how many it is
    expected to yield.
    """

    prefix: int
    asked: int
    levels: int
    nodes: int
    tokens: float
    share: float = 1.0
