"""How often guesses of one kind were right, learned while a text is made.

A guess is a token that a source offers at some place of the text. Every place tells of all its guesses, drafted or not:
the token that came is the target's, and so it is under sampling, where a chosen token is accepted with the probability
with which the target draws it. So the rates do not depend on what was worth drafting, and plain steps teach too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

PRIOR_WEIGHT = 12.0
"""What the prior rate of a kind counts as, in guesses."""
FORGET = 0.99
"""What a guess is worth one guess of its kind later."""
LEAST = 0.001
"""No rate is taken to be nearer to 0 or 1."""


FLATTER = 0.35
"""A prior rate p of greedy answers is p ** (1 + FLATTER * T) at temperature T: measured at 1, as the priors were."""
WARMEST = 2.0
"""Temperatures are told apart in tenths, up to this one."""


class RatesByTemperature:
    """Rates of a kind of source for requests of every temperature; ``keep``: those of one temperature share theirs."""

    def __init__(self, prior: Callable[[Any], float], keep: bool) -> None:
        self._prior = prior
        self._kept: dict[float, AcceptanceRates] | None = {} if keep else None

    def of(self, temperature: float) -> AcceptanceRates:
        """The rates of a request that begins."""
        temperature = temperature_class(temperature)
        if self._kept is None:
            return AcceptanceRates(partial(prior_at, self._prior, temperature))
        if temperature not in self._kept:
            self._kept[temperature] = AcceptanceRates(partial(prior_at, self._prior, temperature))
        return self._kept[temperature]


def temperature_class(temperature: float) -> float:
    """What is learned together."""
    return min(round(temperature, 1), WARMEST)


def prior_at(prior: Callable[[Any], float], temperature: float, kind: Hashable) -> float:
    """The prior rate of a kind at a temperature: the further from greedy, the rarer is any one token."""
    return float(prior(kind) ** (1 + FLATTER * temperature))


class AcceptanceRates:
    """Discounted counts of right and of all guesses by kind, drawn towards ``prior(kind)``."""

    def __init__(self, prior: Callable[[Any], float]) -> None:
        self._prior = prior
        self._tried: dict[Hashable, float] = {}
        self._right: dict[Hashable, float] = {}
        self._known: dict[Hashable, float] = {}

    def rate(self, kind: Hashable) -> float:
        """The share of guesses of this kind that are right."""
        known = self._known.get(kind)
        if known is None:
            right = self._right.get(kind, 0.0) + PRIOR_WEIGHT * self._prior(kind)
            known = right / (self._tried.get(kind, 0.0) + PRIOR_WEIGHT)
            known = self._known[kind] = min(max(known, LEAST), 1 - LEAST)
        return known

    def log_odds(self, kind: Hashable) -> float:
        """ln(rate / (1 - rate))."""
        rate = self.rate(kind)
        return math.log(rate / (1 - rate))

    def observe(self, kind: Hashable, right: bool) -> None:
        """A guess of this kind was made, and was right or not."""
        self._tried[kind] = FORGET * self._tried.get(kind, 0.0) + 1
        self._right[kind] = FORGET * self._right.get(kind, 0.0) + right
        self._known.pop(kind, None)
