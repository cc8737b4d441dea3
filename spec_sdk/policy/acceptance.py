"""A running estimate of how many drafted tokens will be accepted, for trees of every depth and width."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Nodes per level of the trees that are told apart."""
PRIOR_WEIGHT = 8.0
"""What an estimate is drawn towards counts as so many observations."""
FORGET = 0.95
"""What a cycle's observations are worth one speculative cycle later."""
FADE = 0.97
"""What they are worth one plain step later: long ago, the text was another."""
FIRST_USUAL = 0.7
"""Acceptance rate expected before anything was seen."""
FIRST_WEIGHT, USUAL_WEIGHT = 0.1, 0.02
"""Weight of an observed position in the run's usual rates, with which each request begins: first, at last."""
SIBLINGS_FORGET, SIBLINGS_PRIOR = 0.99, 8.0
"""What an observation of siblings is worth one observation later, and what their prior counts as."""
SIBLINGS_POWER = 0.5
"""Before anything was seen, the chance that no node of a level of w is accepted is taken to fall as w^-this.

A power of w is what Sequoia (Chen et al. 2024, §3) finds in measured trees.
"""


class UsualRate:
    """A mean of all observations of a run, later ones with a weight of ``USUAL_WEIGHT`` at least."""

    def __init__(self, first: float) -> None:
        self.mean = first
        self._weight = FIRST_WEIGHT

    def observe(self, happened: bool) -> None:
        self.mean += self._weight * (happened - self.mean)
        # 1/10, 1/11, …: at first the plain mean of all observations
        self._weight = max(USUAL_WEIGHT, self._weight / (1 + self._weight))


class UsualAcceptance:
    """What is usual in a run: the rate of a chain, and what the siblings of a wider tree add to it."""

    def __init__(self) -> None:
        self.chain = UsualRate(FIRST_USUAL)
        self._tried = [0.0] * len(WIDTHS)
        self._helped = [0.0] * len(WIDTHS)

    def observe_siblings(self, width: int, helped: bool) -> None:
        """A level that a tree of ``WIDTHS[width - 1]`` could not go on at: whether one of ``WIDTHS[width]`` did."""
        self._tried[width] = SIBLINGS_FORGET * self._tried[width] + 1
        self._helped[width] = SIBLINGS_FORGET * self._helped[width] + helped

    def siblings(self, widest: int) -> list[float]:
        """Per width, the chance that siblings help. Each is drawn towards the power of the next narrower one."""
        power, gains = SIBLINGS_POWER, [0.0]
        for width in range(1, widest + 1):
            ratio = WIDTHS[width - 1] / WIDTHS[width]
            expected = 1 - ratio**power
            gain = (self._helped[width] + SIBLINGS_PRIOR * expected) / (self._tried[width] + SIBLINGS_PRIOR)
            gains.append(gain)
            power = math.log(1 - gain) / math.log(ratio)
        return gains


class Acceptance:
    """The chance a_i(w) that a tree of w nodes per level goes on at level i, given that it did above.

    Every cycle tells of all narrower trees too: of an accepted path they would have had the nodes up to the first one
    whose rank in its level is above their width. Each a_i is estimated from discounted counts. That of a chain is drawn
    towards a_(i-1), the first towards what is usual; that of a wider tree towards that of the next narrower one and
    what siblings usually add.
    """

    def __init__(self, max_depth: int, usual: UsualAcceptance) -> None:
        self.usual = usual
        self._tried = [[0.0] * max_depth for _ in WIDTHS]
        self._accepted = [[0.0] * max_depth for _ in WIDTHS]
        self._asked = self._proposed = 1.0
        self._expected: list[list[float]] = []

    @property
    def proposals(self) -> float:
        """The share of calls in which the drafter had anything to propose."""
        return self._proposed / self._asked

    def observe(self, width: int, drafted: int, ranks: Sequence[int], cut: bool) -> None:
        """A cycle that asked for a draft and got one of ``drafted`` levels, as wide as ``WIDTHS[width]`` allows.

        ``ranks``: of the accepted nodes. ``cut``: the answer ended inside it, so nothing was rejected.
        """
        self._discount(FORGET)
        self._asked += 1
        self._proposed += drafted > 0
        accepted, reached = len(ranks), 0
        within = list(ranks)
        for i in range(1, accepted):
            within[i] = max(within[i - 1], ranks[i])
        for narrower in range(width + 1):
            # all that was accepted is within the tree that was asked for, however its levels were filled
            kept = accepted if narrower == width else sum(rank <= WIDTHS[narrower] for rank in within)
            seen = kept + (kept < accepted or (accepted < drafted and not cut))
            tried, counted = self._tried[narrower], self._accepted[narrower]
            for i in range(min(seen, len(tried))):
                tried[i] += 1
                counted[i] += i < kept
            if narrower == 0:
                for i in range(seen):
                    self.usual.chain.observe(i < kept)
            elif reached < accepted or (reached < drafted and not cut):
                # the level at which the next narrower tree would have ended
                self.usual.observe_siblings(narrower, kept > reached)
            reached = kept

    def fade(self) -> None:
        """A plain step passed."""
        self._discount(FADE)

    def rates(self, widest: int = 0) -> list[list[float]]:
        """a_1, a_2, … for each of the first ``widest + 1`` widths."""
        table: list[list[float]] = []
        for width, gain in enumerate(self.usual.siblings(widest)):
            before, rates = self.usual.chain.mean, list[float]()
            for i, (tried, accepted) in enumerate(zip(self._tried[width], self._accepted[width], strict=True)):
                drawn_to = 1 - (1 - table[-1][i]) * (1 - gain) if width else before
                before = (accepted + PRIOR_WEIGHT * drawn_to) / (tried + PRIOR_WEIGHT)
                rates.append(before)
            table.append(rates)
        return table

    def expected_tokens(self, widest: int = 0) -> list[list[float]]:
        """E(γ) = 1 + Σ_(i≤γ) Π_(j≤i) a_j for γ = 1, 2, …, per width: new tokens of a cycle with a tree γ deep."""
        if len(self._expected) == widest + 1:
            return self._expected
        table = []
        for rates in self.rates(widest):
            expected, total, path = [], 1.0, 1.0
            for rate in rates:
                path *= rate
                total += path
                expected.append(total)
            table.append(expected)
        self._expected = table
        return table

    def _discount(self, factor: float) -> None:
        self._expected = []
        for counts in (self._tried, self._accepted):
            for width, of_width in enumerate(counts):
                if of_width[0]:
                    counts[width] = [factor * count for count in of_width]
        # the share of proposals keeps one observation, so that it never forgets altogether
        scale = max(factor, 1 / self._asked)
        self._asked, self._proposed = scale * self._asked, scale * self._proposed
