"""A running estimate of how many drafted tokens will be accepted."""

from __future__ import annotations

PRIOR_WEIGHT = 2.0
"""The estimate of the position before counts as so many observations."""
FORGET = 0.93
"""What a cycle's observations are worth one speculative cycle later."""
FADE = 0.97
"""What they are worth one plain step later: long ago, the text was another."""


class Acceptance:
    """The chance a_i that position i of a draft is accepted, given that those before it were.

    Each a_i is estimated from discounted counts and drawn towards a_(i-1), the first towards ``usual``.
    """

    def __init__(self, max_depth: int, usual: float) -> None:
        self.usual = usual
        self._tried = [0.0] * max_depth
        self._accepted = [0.0] * max_depth
        self._asked = self._proposed = 1.0

    @property
    def proposals(self) -> float:
        """The share of calls in which the drafter had anything to propose."""
        return self._proposed / self._asked

    def observe(self, drafted: int, accepted: int, cut: bool) -> None:
        """A cycle that asked for a draft. ``cut``: the answer ended inside it, so nothing was rejected."""
        self._discount(FORGET)
        self._asked += 1
        self._proposed += drafted > 0
        rejected = accepted < drafted and not cut
        for i in range(min(accepted + rejected, len(self._tried))):
            self._tried[i] += 1
            self._accepted[i] += i < accepted

    def fade(self) -> None:
        """A plain step passed."""
        self._discount(FADE)

    def rates(self) -> list[float]:
        """a_1, a_2, …"""
        rates, before = [], self.usual
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            before = (accepted + PRIOR_WEIGHT * before) / (tried + PRIOR_WEIGHT)
            rates.append(before)
        return rates

    def expected_tokens(self) -> list[float]:
        """E(γ) = 1 + Σ_(i≤γ) Π_(j≤i) a_j for γ = 1, 2, …: new tokens of a cycle that drafts γ deep."""
        expected, total, path = [], 1.0, 1.0
        for rate in self.rates():
            path *= rate
            total += path
            expected.append(total)
        return expected

    def _discount(self, factor: float) -> None:
        self._tried = [factor * count for count in self._tried]
        self._accepted = [factor * count for count in self._accepted]
        # the share of proposals keeps one observation, so that it never forgets altogether
        scale = max(factor, 1 / self._asked)
        self._asked, self._proposed = scale * self._asked, scale * self._proposed
