"""The tree with the most tokens per second, from measured times and acceptance; plain decoding if that is it.

A cycle with a tree of γ levels of w nodes yields E(γ, w) tokens in T(γ, w) = draft(γ, w) + verify(1 + γw) seconds; a
plain step yields one in t. The policy asks for the tree of the largest E/T, as long as that beats 1/t. When it does
not, it decodes plainly and tries again later: after ``retry`` plain steps, then twice as many, and so on, with a tree
no larger than what the plain steps have earned (:class:`Account`).

It looks at the events of past cycles only: at times, and at what was accepted. So the budget of a cycle is fixed before
any of its random numbers is drawn. Given everything emitted before, a lossless verifier gives the next token the
target's distribution for every tree, hence for whichever depth and width were chosen: adapting leaves the distribution
of the output as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, CostSource, Policy, Request, option
from spec_sdk.policy.acceptance import Acceptance
from spec_sdk.policy.forced_token_costs import ForcedTokens
from spec_sdk.policy.learned import LONGEST_WAIT, PLAIN_SAMPLES, Learned
from spec_sdk.policy.obtained_costs import COSTS, obtain_costs
from spec_sdk.policy.shapes import Shape, best_shape
from spec_sdk.running_times import OUTLIER

TRIAL_CYCLES = 2
"""Cycles that a trial must be able to pay for: one alone says too little."""
RESERVE_STEPS = 4
"""Plain steps' worth of savings that are kept above the cost of a trial."""
LARGEST_DEBT_STEPS = 20
"""An unforeseen cost counts for at most so many plain steps: one compilation must not end speculation for good."""
CURVE_REFRESH = 4
"""With a cost curve plain steps are timed so many times less often."""
GIVE_UP = 1.0
"""Speed relative to plain decoding below which speculation ends: less than it began with, since estimates waver."""
CHAIN = Shape(1, 0)


@dataclass
class AdaptiveConfig:
    """Options of ``policy=adaptive``."""

    max: int = option(10, "deepest draft, in tokens along one path", minimum=1)
    loss: float = option(
        0.025,
        "share of plain decoding's time that trying to speculate may lose, in the worst case",
        minimum=0,
        below=1,
    )
    margin: float = option(
        0.03, "speculate only where it is predicted to beat plain decoding by so much", minimum=0, below=1
    )
    retry: int = option(
        8,
        f"plain steps until speculation is tried again; doubled each time it did not pay, up to {LONGEST_WAIT}",
        minimum=1,
    )
    refresh: int = option(32, "speculative cycles after which a plain step is timed anew", minimum=1)
    costs: str = option("auto", "what wider passes cost on this machine", choices=COSTS)


class AdaptivePolicy(Policy):
    """Maximises expected tokens per second; falls back to plain decoding where speculation does not pay."""

    name = "adaptive"
    Config = AdaptiveConfig
    config: AdaptiveConfig

    def __init__(self, config: AdaptiveConfig, learned: Learned | None = None) -> None:
        super().__init__(config)
        self.learned = learned or Learned(config.loss)
        self._acceptance = Acceptance(config.max, self.learned.usual)
        self._speculating = self._tried = False
        self._saved = 0.0
        self._unfed: int | None = None
        self._remaining = 1
        self._since_plain = 0
        self._asked = self._best_known = CHAIN
        self._chosen: tuple[int, Shape | None, float] | None = None

    def for_request(self) -> AdaptivePolicy:
        return type(self)(self.config, self.learned)

    def prepare(self, costs: CostSource, branches: bool) -> None:
        if not branches:
            self.learned.widths.only_chains()
        self.learned.times.catches_up, self.learned.times.longest_catch_up = costs.catches_up, costs.longest_catch_up
        known = obtain_costs(costs, self.config.costs)
        if known is not None:
            self.learned.times.use(known)

    def budget(self, request: Request) -> Budget:
        unfed = len(request.tokens) if self._unfed is None else self._unfed
        self._remaining = max(1, request.max_new_tokens - request.new_tokens)
        learned = self.learned
        if learned.times.plain.count < PLAIN_SAMPLES or self._since_plain >= self._refresh:
            return Budget(0)
        going_on = self._speculating or self._is_promising(unfed)
        if not going_on and not self._may_try(unfed):
            return Budget(0)
        best, speed = self._best(unfed)
        cycles = 1 if going_on else TRIAL_CYCLES
        affordable = (learned.account.balance - learned.times.catch_up(unfed)) / cycles
        shape = best
        if best is not None and self._loss(best, 0) > affordable:
            shape, speed = self._best(unfed, affordable)
        # a tree smaller than the best is for a start, or where speculating has paid so far
        if shape is None or (going_on and shape != best and not (speed > self._worth_it and self._saved > 0)):
            return Budget(0)
        self._asked = shape
        return shape.budget

    def _is_promising(self, unfed: int) -> bool:
        """Speculation paid when it was last tried, and this request has not tried it yet."""
        learned = self.learned
        return not (self._tried or learned.failures) and learned.times.known and self._best(unfed)[1] > self._worth_it

    @property
    def _worth_it(self) -> float:
        """The speed relative to plain decoding from which on speculation is begun."""
        return 1 + self.config.margin

    @property
    def _refresh(self) -> int:
        """Speculative cycles until a plain step is timed anew; a cost curve tells what it takes from other passes."""
        return self.config.refresh * (CURVE_REFRESH if self.learned.times.has_curve else 1)

    def _may_try(self, unfed: int) -> bool:
        """The wait is over, and what there is to catch up with could pay off before the answer ends."""
        times = self.learned.times
        return not self.learned.waiting and 2 * times.catch_up(unfed) <= self._remaining * times.plain.mean

    def observe(self, event: Mapping[str, Any]) -> None:
        self._chosen = None
        if event["event"] == "prefill":
            self._observe_prefill(event)
            return
        self.learned.times.behind(event["prefix"])
        if event["budget"]:
            self._observe_speculation(event)
        else:
            self._observe_plain(event)

    def _observe_prefill(self, event: Mapping[str, Any]) -> None:
        learned, started = self.learned, event["drafter_s"]
        tokens, kept = event["tokens"], event.get("kept", 0)
        learned.times.drafts_with_model = event["draft"] is not None
        learned.times.add_prefill(tokens - kept, event["seconds"] - (started or 0.0))
        # half the failures are forgiven: another prompt, another chance
        learned.failures //= 2
        learned.begin_wait(self.config.retry)
        self._unfed = tokens + 1
        if started is not None:
            learned.times.add_start(tokens, kept, started)
            self._unfed = 1
            self._book(0.0, -started)

    def _observe_plain(self, event: Mapping[str, Any]) -> None:
        learned, rows, forced = self.learned, event["tree_nodes"], ForcedTokens.of(event)
        learned.times.add_verify(forced.timed_rows(rows, learned.times), event["verify_s"] + event["recover_s"])
        learned.waited += 1
        self._since_plain = 0
        self._unfed = (self._unfed or 0) + len(event["tokens"])
        self._acceptance.fade()
        self._book((len(event["tokens"]) - forced.emitted) * learned.times.plain.mean, 0.0)

    def _observe_speculation(self, event: Mapping[str, Any]) -> None:
        times, drafted, forced = self.learned.times, event["drafted"], ForcedTokens.of(event)
        asked, rows, new = Shape(event["budget"], self._asked.width_index), event["tree_nodes"], len(event["tokens"])
        unfed, self._unfed, new = self._unfed or 0, new, new - forced.emitted
        verify_s = event["verify_s"] + event["recover_s"]
        # forced tokens need their rows whether anything is drafted or not
        of_forced_s = forced.seconds(times)
        predicted = times.catch_up(unfed) + times.draft(asked.depth, asked.per_level) + times.verify(max(rows, 2))
        settled = times.settled
        times.add_draft(asked.depth, asked.per_level, drafted, unfed, event["draft_s"])
        times.add_verify(rows, verify_s)
        self._since_plain = self._since_plain + 1 if drafted else 0
        width = self.learned.widths.observe(asked, event["level_sizes"]) if drafted else 0
        self._acceptance.observe(width, drafted, event["accepted_ranks"], cut=new <= event["accepted"])

        spent = event["draft_s"] + verify_s
        if settled:
            spent = min(spent, OUTLIER * predicted)
        spent -= of_forced_s
        plain_s = new * times.plain.mean
        # without a draft the pass was a plain step, and only the asking is lost
        saved = plain_s - spent if drafted else -event["draft_s"]
        if not self._speculating:
            self._speculating, self._tried, self._saved = True, True, 0.0
        self._saved += saved
        self._book(plain_s, saved)
        # however little of the answer is left: giving up is about the text, not about its end
        self._chosen = None
        if self._best(new, deepest=self.config.max)[1] < GIVE_UP:
            self._give_up()

    def _give_up(self) -> None:
        learned = self.learned
        self._speculating = False
        learned.failures = 0 if self._saved > 0 else learned.failures + 1
        learned.waited = 0
        learned.begin_wait(self.config.retry)

    def _best(self, unfed: int, affordable: float = math.inf, deepest: int | None = None) -> tuple[Shape | None, float]:
        """The best shape, and its speed relative to plain decoding.

        The time is that of a cycle in which the drafter proposes something; calls that gave nothing are shared out.
        None where no cycle is ``affordable``, seconds that one may lose. ``deepest``: if left out, what is left of the
        answer.
        """
        learned, times, plain = self.learned, self.learned.times, self.learned.times.plain.mean
        catch_up = times.catch_up(unfed)
        # the last token is always the target's own
        deepest = min(self.config.max, deepest or max(1, self._remaining - 1))
        if self._chosen is not None and affordable == math.inf and self._chosen[0] == deepest:
            _, shape, per_token = self._chosen
        else:
            shape, per_token = best_shape(
                times,
                self._acceptance.expected_tokens(learned.widths.widest),
                deepest,
                silences_s=(1 / self._acceptance.proposals - 1) * times.silence.mean,
                most_s=affordable + plain,
            )
            if affordable == math.inf:
                self._chosen = deepest, shape, per_token
        if shape is not None and affordable == math.inf:
            self._best_known = shape
        return shape, plain / (per_token + catch_up / self._remaining)

    def _loss(self, shape: Shape, unfed: int) -> float:
        """What a cycle costs beyond a plain step if nothing is accepted."""
        times = self.learned.times
        cycle = times.draft(shape.depth, shape.per_level) + times.verify(shape.nodes)
        return times.catch_up(unfed) + cycle - times.plain.mean

    def _trial_loss(self, shape: Shape, unfed: int) -> float:
        """What a trial costs if nothing is accepted."""
        return self._loss(shape, unfed) + (TRIAL_CYCLES - 1) * self._loss(shape, 0)

    def _book(self, plain_s: float, saved_s: float) -> None:
        account, plain = self.learned.account, self.learned.times.plain.mean
        trial = self._trial_loss(self._best_known, self._unfed or 0)
        account.book(plain_s, saved_s, most=trial + RESERVE_STEPS * plain)
        account.balance = max(account.balance, -LARGEST_DEBT_STEPS * plain)
