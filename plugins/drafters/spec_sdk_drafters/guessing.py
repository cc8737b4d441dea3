"""One request's guesses from several sources: how probable they are, the tree of the best, learning from the text."""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from spec_sdk.contracts import Budget, TopTokens
from spec_sdk.ops.draws import part_of
from spec_sdk.ops.grown_paths import NEGLIGIBLE_GAIN
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.guess_source import GuessSource

Places = list[Any]
"""The place in each source."""
Offered = list[Mapping[int, Hashable] | None]
"""What each source guesses at its place, token → kind; None of one that is silent there."""


class Guesser:
    """Guesses of ``sources``, the best informed first, for a text whose first ``taken_in`` tokens are known."""

    def __init__(self, sources: Sequence[GuessSource]) -> None:
        self.sources = sources
        self.taken_in = 0
        self._grown_from: tuple[Places, Offered] | None = None

    def read(self, tokens: Sequence[int]) -> None:
        """Go on with the text up to ``tokens`` without learning from it: a prompt."""
        self._extend(tokens[self.taken_in :])

    def learn(self, tokens: Sequence[int]) -> None:
        """Go on with the text up to ``tokens``, which the target has made: which guesses were right?"""
        for token in tokens[self.taken_in :]:
            # what the tree was made of is not looked up again
            places, offered = self._grown_from or self._end()
            for guess in dict.fromkeys(guess for guesses in offered if guesses for guess in guesses):
                for source, place, guesses in zip(self.sources, places, offered, strict=True):
                    if guesses is None:
                        continue
                    kind = guesses[guess] if guess in guesses else source.other(place)
                    source.rates.observe(kind, guess == token)
            self._extend([token])

    def record(self, tree: TokenTree, top: TopTokens, tokens: Sequence[int]) -> None:
        """The target scored ``tree``, and the text went on from its root up to ``tokens``: learn from both."""
        path = tree.path_along(tokens[self.taken_in :])
        # before the sources know what the target thought here
        self.learn(tokens)
        for source in self.sources:
            source.record(tree, top, path)

    def surest(self) -> float:
        """The probability of the best guess at the text's end; 0 without any."""
        return max(self.at_end().values(), default=0.0)

    def at_end(self) -> dict[int, float]:
        """Every token that some source guesses at the text's end, and how probably it is right."""
        return dict(self._guesses(*self._end()))

    def grow(self, root: int, budget: Budget, min_probability: float, drafter: str) -> TreeBuilder:
        """The tree of the paths with the largest probabilities, best first, none of less than ``min_probability``.

        A path's probability is the product of its guesses' probabilities: the expected number of accepted tokens is the
        sum over all nodes, and a node is never better than its parent, so the best nodes are a tree. Each says which
        part of ``drafter`` it comes from, where there are several.
        """
        tree, probabilities = TreeBuilder(root, budget.nodes), list[float]()
        least = max(min_probability, least_price(budget.node_costs))
        # of two equally probable ones the one that was found first
        offers: list[tuple[float, int, int, int, Places, Offered]] = []
        found = 0

        def offer(node: int, places: Places, offered: Offered, joint: float) -> None:
            nonlocal found
            for token, probability in self._guesses(places, offered):
                if joint * probability >= least:
                    found += 1
                    heapq.heappush(offers, (-joint * probability, found, node, token, places, offered))

        self._grown_from = self._end()
        offer(0, *self._grown_from, 1.0)
        while offers and tree.room:
            negative, _, parent, token, places, offered = heapq.heappop(offers)
            node = tree.add(parent, token, "chosen", drafter=self._credited(drafter, token, offered))
            probabilities.append(-negative)
            if tree.depth[node] < budget.depth and tree.room:
                after = [source.after(place, token) for source, place in zip(self.sources, places, strict=True)]
                offer(node, after, self._offered(after), -negative)
        size = 1 + worthwhile(probabilities, budget.node_costs)
        return tree if size == tree.size else first_nodes(tree, size)

    def _offered(self, places: Places) -> Offered:
        return [
            None if source.silent(place) else source.guesses(place)
            for source, place in zip(self.sources, places, strict=True)
        ]

    def _guesses(self, places: Places, offered: Offered) -> Iterator[tuple[int, float]]:
        """Every token that some source guesses, and how probably it is right."""
        speaking = [
            (source, guesses, source.other(place))
            for source, guesses, place in zip(self.sources, offered, places, strict=True)
            if guesses is not None
        ]
        if len(speaking) == 1:
            ((source, guesses, _),) = speaking
            yield from ((token, source.rates.rate(kind)) for token, kind in guesses.items())
            return
        for token in dict.fromkeys(token for _, guesses, _ in speaking for token in guesses):
            log_odds = 0.0
            for i, (source, guesses, other) in enumerate(speaking):
                own = source.rates.log_odds(guesses.get(token, other))
                log_odds += source.further_weight * own + source.further_offset if i else own
            yield token, 1 / (1 + math.exp(-log_odds))

    def _credited(self, drafter: str, token: int, offered: Offered) -> str:
        """``mixed/suffix``: of the sources that guess the token the surest."""
        if len(self.sources) == 1:
            return drafter
        rates = {
            source.name: source.rates.rate(guesses[token])
            for source, guesses in zip(self.sources, offered, strict=True)
            if guesses is not None and token in guesses
        }
        return part_of(drafter, max(rates, key=lambda name: rates[name]))

    def _end(self) -> tuple[Places, Offered]:
        """The text's end, and what is offered there."""
        places = [source.end() for source in self.sources]
        return places, self._offered(places)

    def _extend(self, tokens: Sequence[int]) -> None:
        self._grown_from = None
        for source in self.sources:
            source.extend(tokens)
        self.taken_in += len(tokens)


def least_price(node_costs: Sequence[float]) -> float:
    """What a further node costs where it costs least: one of a smaller probability makes no tree better."""
    return min(map(operator.sub, node_costs[1:], node_costs), default=0.0)


def worthwhile(probabilities: Sequence[float], node_costs: Sequence[float]) -> int:
    """How many of a tree's nodes, the best first, to keep for the largest expected gain in tokens."""
    if not node_costs:
        return len(probabilities)
    best, gain, most = 0, 0.0, 0.0
    for kept, (probability, cost) in enumerate(zip(probabilities, node_costs[1:], strict=False), start=1):
        gain += probability
        if gain - cost > most + NEGLIGIBLE_GAIN:
            best, most = kept, gain - cost
    return best


def first_nodes(tree: TreeBuilder, size: int) -> TreeBuilder:
    """The tree of the ``size`` nodes that were added first, all of them chosen."""
    kept = TreeBuilder(tree.root, tree.max_nodes)
    for node in range(1, size):
        parent = tree.parent[node]
        draw = next(draw for draw in tree.draws[parent] if draw.node == node)
        kept.add(parent, tree.token[node], "chosen", drafter=draw.drafter, probability=draw.probability)
    return kept
