"""Token recycling (Luo et al. 2024): what the target last thought likely after a token is guessed after it again.

The target scores every node of a tree, and what it thought of those that were rejected would be thrown away. A table
keeps it: token → the tokens that the target found most probable after the last node with that token.

Legend: N tree nodes, K tokens kept of each.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from spec_sdk.contracts import TopTokens
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.acceptance_rates import AcceptanceRates, RatesByTemperature
from spec_sdk_drafters.guess_source import GuessSource, Sources

PROBABILITIES = (0.03, 0.1, 0.25, 0.5, 0.8)
"""Probabilities that the target gave are told apart at these; below the first, only the most probable are kept."""
RANKS = 3
"""The most probable token, the second, and all others are told apart."""
PRIOR = (
    (0.15, 0.18, 0.23, 0.28, 0.34, 0.47),
    (0.08, 0.09, 0.12, 0.17, 0.20, 0.20),
    (0.02, 0.05, 0.11, 0.12, 0.12, 0.12),
)
"""Rates to begin with, by rank and probability."""
NOT_LISTED: Final = "not listed"
NO_ROW: Final = "no row"
OTHERS_PRIOR = {NOT_LISTED: 0.02, NO_ROW: 0.05}

Row = tuple[tuple[int, tuple[int, int]], ...]


class RecyclingTable:
    """Token → its likely successors, each with the class of its rank and that of its probability."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def record(self, tree: TokenTree, top: TopTokens, path: Sequence[int]) -> None:
        """Keep what the target thought of the nodes of a tree; of two with one token that of the accepted ``path``."""
        tokens, probabilities = top.token_NK.tolist(), top.probability_NK.tolist()
        for node in [*range(tree.size), *path]:
            self.rows[tree.token_N[node]] = tuple(
                (token, (min(rank, RANKS - 1), sum(probability >= bound for bound in PROBABILITIES)))
                for rank, (token, probability) in enumerate(zip(tokens[node], probabilities[node], strict=True))
                if probability > 0 and (rank < 2 or probability >= PROBABILITIES[0] / 3)
            )


class RecyclingSource(GuessSource):
    """Successors of the last token."""

    name = "token_recycling"

    def __init__(self, rates: AcceptanceRates, table: RecyclingTable) -> None:
        self.rates = rates
        self.table = table
        self._last = -1

    def extend(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._last = tokens[-1]

    def record(self, tree: TokenTree, top: TopTokens, path: Sequence[int]) -> None:
        self.table.record(tree, top, path)

    def end(self) -> int:
        return self._last

    def after(self, place: int, token: int) -> int:
        return token

    def guesses(self, place: int) -> Mapping[int, Hashable]:
        return dict(self.table.rows.get(place, ()))

    def other(self, place: int) -> Hashable:
        return NOT_LISTED if place in self.table.rows else NO_ROW


class RecyclingSources(Sources):
    """``keep``: all requests share one table, and what was learned."""

    def __init__(self, keep: bool, successors: int) -> None:
        self.target_top_k = successors
        self._rates = RatesByTemperature(prior, keep)
        self._kept = RecyclingTable() if keep else None

    def new(self, temperature: float) -> RecyclingSource:
        table = RecyclingTable() if self._kept is None else self._kept
        return RecyclingSource(self._rates.of(temperature), table)

    def keep(self, answer: Sequence[int]) -> None:
        """The table has all of it."""


def prior(kind: tuple[int, int] | str) -> float:
    """The rate of a kind of guess before any was seen."""
    if isinstance(kind, str):
        return OTHERS_PRIOR[kind]
    rank, probability = kind
    return PRIOR[rank][probability]
