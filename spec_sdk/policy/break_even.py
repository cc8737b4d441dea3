"""For drafters that know how probable their guesses are: the price of every node, so that each cycle takes what pays.

The other policies choose a tree's shape from what was accepted on average. A drafter that estimates the probability of
every node can do better: it is told what a tree of so many nodes costs beyond a plain step, in tokens, and proposes the
tree with the largest expected gain. Where nothing is worth its price that is the root alone: a plain step.

Prices come from the past alone, so a budget is fixed before any random number of its cycle is drawn, and the
distribution of the output stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, CostSource, Policy, Request, option
from spec_sdk.policy.forced_tokens import ForcedTokens
from spec_sdk.policy.learned import LONGEST_WAIT, PLAIN_SAMPLES
from spec_sdk.policy.obtained_costs import COSTS, obtain_costs
from spec_sdk.policy.running_times import RunningTime
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
GAINS_KEPT = 4
"""Gains that are set against later losses, in ``patience``."""
FORGET = 0.9
"""What a cycle counts for one cycle later in the run's speed."""


@dataclass
class BreakEvenConfig:
    """Options of ``policy=break_even``."""

    max: int = option(12, "deepest draft, in tokens along one path", minimum=1)
    max_nodes: int = option(32, "most nodes of a cycle's tree, the root included", minimum=2)
    patience: float = option(
        1.5,
        "lost time, in plain steps, after which drafting pauses; earlier gains of up to four times it make up for it",
        above=0,
    )
    retry: int = option(
        16,
        f"plain steps of the first pause; doubled each time drafting did not pay, up to {LONGEST_WAIT}",
        minimum=1,
    )
    refresh: int = option(64, "cycles with a draft after which a plain step is timed anew", minimum=1)
    costs: str = option("auto", "what wider passes cost on this machine", choices=COSTS)


class BreakEvenPolicy(Policy):
    """Tells the drafter what nodes cost; pauses while drafting does not pay. For drafters with probabilities of nodes.

    One that takes no notice of :attr:`Budget.node_costs` grows the largest tree that is granted: use ``adaptive``.
    """

    name = "break_even"
    Config = BreakEvenConfig
    config: BreakEvenConfig

    def __init__(self, config: BreakEvenConfig) -> None:
        super().__init__(config)
        self._times = StageTimes()
        self._gained = 0.0
        self._tokens = self._seconds = 0.0
        self._failures = self._pause = self._since_plain = self._since_priced = self._wider_passes = 0
        self._untried = 0
        self._prices: tuple[float, ...] = ()
        self._level = RunningTime()
        self._tokens_per_second = 0.0

    def for_request(self) -> BreakEvenPolicy:
        # what a node costs, and whether guesses pay, is learned by all requests of a run together
        return self

    def prepare(self, costs: CostSource, branches: bool) -> None:
        known = obtain_costs(costs, self.config.costs)
        if known is not None:
            self._times.use(known)

    def budget(self, request: Request) -> Budget:
        if self._times.plain.count < PLAIN_SAMPLES or self._pause > 0 or self._since_plain >= self.config.refresh:
            return Budget(0)
        rate = self._tokens_per_second
        return Budget(self.config.max, self.config.max_nodes, self._prices, self._level.mean * rate, rate)

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "prefill":
            # another prompt, another chance
            self._failures //= 2
            self._pause = min(self._pause, self.config.retry)
            return
        times, rows, forced = self._times, event["tree_nodes"], ForcedTokens.of(event)
        nodes, new = rows - forced.taken, len(event["tokens"]) - forced.emitted
        times.behind(event["prefix"])
        verify_s = event["verify_s"] + event["recover_s"]
        times.add_verify(forced.timed_rows(rows, times) if nodes == 1 else rows, verify_s)
        self._since_plain = self._since_plain + 1 if nodes > 1 else 0
        self._wider_passes += rows > 1
        if nodes == 1:
            self._untried += event["budget"] > 0
        elif self._untried:
            # the next cycles pay what this one took
            self._untried, self._prices = 0, ()
        verify_s -= forced.seconds(times)
        if not event["budget"]:
            self._pause -= 1
        else:
            # a plain step is no loss of drafting, however long it took
            self._book(new, event["draft_s"] + (verify_s if nodes > 1 else times.plain.mean))
            if event["drafted"]:
                self._level.add(event["draft_s"] / event["drafted"])
        self._since_priced += 1
        # a constraint may force tokens from the first step on: then no plain one was timed yet
        if times.plain.count and (not self._prices or self._since_priced >= PRICED_AGAIN):
            self._set_prices()

    def _book(self, new: int, seconds: float) -> None:
        plain = self._times.plain.mean
        self._tokens, self._seconds = FORGET * self._tokens + new, FORGET * self._seconds + seconds
        most_s = self.config.patience * plain
        self._gained = min(self._gained + new * plain - seconds, GAINS_KEPT * most_s)
        if self._gained < -most_s:
            self._pause = min(self.config.retry << self._failures, LONGEST_WAIT)
            self._failures, self._gained = min(self._failures + 1, 16), 0.0

    def _set_prices(self) -> None:
        """A second is worth what it makes on average: with drafts, or without them where those make less."""
        times, self._since_priced = self._times, 0
        plain = times.plain.mean
        token_s = min(plain, self._seconds / self._tokens) if self._tokens else plain
        known = times.has_curve or self._wider_passes > 0
        reduced = 1 / (1 + self._untried / (UNTRIED_SINCE if known else UNTRIED))
        prices = [0.0]
        for nodes in range(2, self.config.max_nodes + 1):
            # a measured curve may dip where it is flat: a wider pass is never taken to cost less
            costs_s = times.verify(nodes) - plain if known else UNMEASURED * (nodes - 1) * plain
            prices.append(max(prices[-1], reduced * costs_s / token_s))
        self._prices, self._tokens_per_second = tuple(prices), 1 / token_s
