"""What nodes, levels and seconds are worth in a run, in tokens: from what its passes and its drafts took."""

from __future__ import annotations

import math

from spec_sdk.policy.stage_times import StageTimes

PRICED_AGAIN = 8
"""Cycles after which prices are worked out anew."""
UNMEASURED = 0.3
"""What a node is taken to cost, in plain steps, before any pass over several was timed: dear, so that only sure guesses
are tried first.
"""
UNTRIED = 8
"""After so many cycles in which no guess was worth that, half of it; then a third, and so on: else no pass over several
would ever be timed where no guess is that sure.
"""
UNTRIED_SINCE = 64
"""The same where passes over several were timed before: one that was slow for other reasons must not be the last."""
FORGET = 0.9
"""What a cycle counts for one cycle later in the run's speed."""
FORGET_LEVELS = 0.98
"""The same in what levels gave."""
GIVEN_BY_A_LEVEL = 0.5
"""Tokens that a level gives where the one above it was accepted, before any was drafted; counts for so many levels."""
GIVEN_WEIGHT = 4.0
ACCEPTED_BEHIND = 0.6
"""Of drafts that were accepted up to some depth, how many are one level deeper, before any went so deep; counts for so
many drafts.
"""
ACCEPTED_WEIGHT = 2.0
DEEPER_EVERY = 32
"""One draft of so many may go one level deeper than pays."""
ROWS_OF_A_NODE = 4
"""What a node more takes is that of passes up to so many rows, beyond the first."""


class Prices:
    """Works prices out anew every few cycles. All are in tokens that the run makes in the same time.

    ``of_nodes[n - 1]``: what a tree of n nodes costs beyond a plain step, up to ``most_nodes``; never less than that
    of n - 1. ``tokens_per_second``: what a second makes on average, with drafts, or without them where those make less.
    """

    def __init__(self, times: StageTimes, most_nodes: int) -> None:
        self._times = times
        self._most_nodes = most_nodes
        self._tokens = self._seconds = 0.0
        self._given = self._reached = 0.0
        self._drafted: list[float] = []
        self._accepted: list[float] = []
        self._since_set = self._wider_passes = self._untried = self._drafts = 0
        self.of_nodes: tuple[float, ...] = ()
        self.tokens_per_second = 0.0

    @property
    def of_a_level(self) -> float:
        """How probably a level must be reached to be worth drafting: what it and a node more take, by what a level
        gives where it is reached. Without a model nodes alone have prices.
        """
        if not self._times.drafts_with_model or not self.of_nodes:
            return 0.0
        # the first node of a wider pass pays for its width too
        last = min(len(self.of_nodes), ROWS_OF_A_NODE) - 1
        node = (self.of_nodes[last] - self.of_nodes[1]) / (last - 1) if last > 1 else 0.0
        given = (self._given + GIVEN_WEIGHT * GIVEN_BY_A_LEVEL) / (self._reached + GIVEN_WEIGHT)
        return (self._of_drafting_a_level + node) / max(given, 0.01)

    @property
    def _of_drafting_a_level(self) -> float:
        return self._times.draft_level() * self.tokens_per_second

    def deepest(self, most: int) -> int:
        """How deep a draft may go: as deep as a chain gains most, by how many drafts that went so deep were accepted.

        One that looks at prices ends by itself where its tokens are unsure, and those that go on are accepted. Drawn
        trees, which do not look at them, are kept from going to ``most`` every time. Now and then one level more is
        granted, as what is never drafted is never known.
        """
        if not self._times.drafts_with_model or not self.of_nodes:
            return most
        price, share, gained, best, deepest = self._of_drafting_a_level, 1.0, 0.0, -math.inf, 1
        for depth in range(1, most + 1):
            drafted, accepted = 0.0, 0.0
            if depth <= len(self._drafted):
                drafted, accepted = self._drafted[depth - 1], self._accepted[depth - 1]
            share = (accepted + ACCEPTED_WEIGHT * ACCEPTED_BEHIND * share) / (drafted + ACCEPTED_WEIGHT)
            gained += share - price
            gain = gained - self.of_nodes[min(depth, len(self.of_nodes) - 1)]
            if gain > best:
                best, deepest = gain, depth
        return min(most, deepest + (self._drafts % DEEPER_EVERY == DEEPER_EVERY - 1))

    def observe_tree(self, rows: int, nodes: int, asked: bool) -> None:
        """A pass over ``rows``, ``nodes`` of them a tree's, whether or not a draft was asked for."""
        self._since_set += 1
        self._wider_passes += rows > 1
        if nodes == 1:
            self._untried += asked
        elif self._untried:
            # the next cycles pay what this one took
            self._untried, self.of_nodes = 0, ()

    def observe_speed(self, new: int, seconds: float) -> None:
        """A cycle in which a draft was asked for gave so many tokens in so long."""
        self._tokens, self._seconds = FORGET * self._tokens + new, FORGET * self._seconds + seconds

    def observe_levels(self, drafted: int, accepted: int) -> None:
        """Of so many levels so many were accepted."""
        self._drafts += 1
        new = [0.0] * (drafted - len(self._drafted))
        for counts, reached in ((self._drafted, drafted), (self._accepted, accepted)):
            counts.extend(new)
            # those of depths that are not drafted any more fade too, so that they are tried again in the end
            counts[:] = [FORGET_LEVELS * count + (depth < reached) for depth, count in enumerate(counts)]
        if drafted > 1:
            self._given = FORGET_LEVELS * self._given + max(0, accepted - 1)
            self._reached = FORGET_LEVELS * self._reached + min(accepted, drafted - 1)

    def renew(self) -> None:
        """Work them out, if it is time. A constraint may force tokens from the first step on, and none is timed yet."""
        if not self._times.plain.count or (self.of_nodes and self._since_set < PRICED_AGAIN):
            return
        times, self._since_set = self._times, 0
        plain = times.plain.mean
        token_s = min(plain, self._seconds / self._tokens) if self._tokens else plain
        known = times.has_curve or self._wider_passes > 0
        reduced = 1 / (1 + self._untried / (UNTRIED_SINCE if known else UNTRIED))
        prices = [0.0]
        for nodes in range(2, self._most_nodes + 1):
            # a measured curve may dip where it is flat: a wider pass is never taken to cost less
            costs_s = times.verify(nodes) - plain if known else UNMEASURED * (nodes - 1) * plain
            prices.append(max(prices[-1], reduced * costs_s / token_s))
        self.of_nodes, self.tokens_per_second = tuple(prices), 1 / token_s
