"""What a drafter with a model proposed in this cycle, as one source of guesses beside others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from spec_sdk.tree import TokenTree
from spec_sdk_drafters.acceptance_rates import AcceptanceRates
from spec_sdk_drafters.guess_source import GuessSource

PROBABILITIES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""What the model gives a token is told apart at these."""
MIDDLES = (0.01, 0.03, 0.07, 0.15, 0.27, 0.43, 0.58, 0.73, 0.86, 0.96)
DEEPEST = 3
"""Levels of the tree are told apart up to this one."""
TRUST = 0.8
"""What a token's own probability is taken for before any was seen: models are surer than they are right."""
BY_RANK = (0.4, 0.12, 0.06, 0.03)
"""Rates to begin with of a model that gives no probabilities, by place among siblings."""
DRAWN = (0.45, 0.15, 0.08)
"""The same of drawn tokens, by place among the draws."""
NOT_PROPOSED: Final = "not proposed"
NOT_PROPOSED_PRIOR = 0.02


class UsualRates(AcceptanceRates):
    """One request's rates, drawn towards what is usual in the run where ``go_by_usual`` is set."""

    def __init__(self, usual: AcceptanceRates) -> None:
        super().__init__(lambda kind: usual.rate(kind) if self.go_by_usual else prior(kind))
        self.go_by_usual = False
        self._usual = usual

    def observe(self, kind: Hashable, right: bool) -> None:
        super().observe(kind, right)
        self._usual.observe(kind, right)


class ModelSource(GuessSource):
    """The nodes of the tree that a model proposed behind the text's end; silent where there are none.

    A place is a node of that tree, or None.
    """

    rates: UsualRates

    def __init__(self, rates: UsualRates, name: str = "model") -> None:
        self.rates = rates
        self.name = name
        self._children: list[dict[int, int]] = []
        self._kinds: list[dict[int, Hashable]] = []
        self._chances: list[dict[int, float]] = []
        self._at: int | None = None

    def propose(self, tree: TokenTree) -> None:
        """The model proposes ``tree`` behind the text's end."""
        self._children, self._kinds, self._chances, self._at = [], [], [], 0
        for node, draws in enumerate(tree.draws_N):
            depth, kinds = min(tree.depth_N[node] + 1, DEEPEST), dict[int, Hashable]()
            for rank, draw in enumerate(draws):
                token = tree.token_N[draw.node]
                if draw.kind != "chosen":
                    kinds.setdefault(token, ("drawn", depth, min(rank, len(DRAWN) - 1)))
                elif draw.probability is not None:
                    kinds.setdefault(token, ("sure", depth, bisect_right(PROBABILITIES, draw.probability)))
                else:
                    kinds.setdefault(token, ("chosen", depth, min(rank, len(BY_RANK) - 1)))
            self._children.append({tree.token_N[draw.node]: draw.node for draw in draws})
            self._kinds.append(kinds)
            self._chances.append({tree.token_N[d.node]: d.probability for d in draws if d.probability is not None})

    @property
    def worth_of_reach(self) -> tuple[float, float]:
        """Tokens that levels below the first are expected to give, and the model's own sum over the nodes that were fed
        for them of the probability of being reached.
        """
        reached, own = self._reached(), [1.0] * len(self._kinds)
        given = mass = 0.0
        for node, children in enumerate(self._children):
            if node and children:
                mass += own[node]
            for token, child in children.items():
                own[child] = own[node] * self._chances[node].get(token, 1.0)
                given += reached[child] if node else 0.0
        return given, mass

    def _reached(self) -> list[float]:
        """How probably each node is reached, by the rates of the past."""
        reached = [1.0] * len(self._kinds)
        for node, kinds in enumerate(self._kinds):
            for token, kind in kinds.items():
                reached[self._children[node][token]] = reached[node] * self.rates.rate(kind)
        return reached

    def rate_of_draw(self, depth: int, rank: int) -> float:
        """How often the draw of this place among its siblings, from 0 on, is right where its parent was."""
        return self.rates.rate(("drawn", min(depth, DEEPEST), min(rank, len(DRAWN) - 1)))

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._at = self.after(self._at, token)

    def end(self) -> int | None:
        return self._at

    def after(self, place: int | None, token: int) -> int | None:
        return None if place is None else self._children[place].get(token)

    def guesses(self, place: int | None) -> Mapping[int, Hashable]:
        return {} if place is None else self._kinds[place]

    def other(self, place: int | None) -> Hashable:
        return NOT_PROPOSED

    def silent(self, place: int | None) -> bool:
        return place is None or not self._kinds[place]


def prior(kind: Hashable) -> float:
    """The rate of a kind of guess before any was seen."""
    match kind:
        case ("sure", int(depth), int(probability)):
            return TRUST * MIDDLES[probability] * (1.1 - 0.1 * depth)
        case ("chosen", int(depth), int(rank)):
            return BY_RANK[rank] * (1.1 - 0.1 * depth)
        case ("drawn", _, int(rank)):
            return DRAWN[rank]
        case _:
            return NOT_PROPOSED_PRIOR
