"""The depth with the most tokens per second, from measured stage times and acceptance; plain decoding if that is it.

A cycle of depth γ yields E(γ) tokens in T(γ) = draft(γ) + verify(γ) seconds; a plain step yields one in t. The policy
drafts to the γ of the largest E/T, as long as that beats 1/t. When it does not, it decodes plainly and tries again
later: after ``retry`` plain steps, then twice as many, and so on, and never before the plain steps have earned what the
trial may cost (:class:`Account`).

It looks at the events of past cycles only: at times, and at what was accepted. So the budget of a cycle is fixed before
any of its random numbers is drawn. Given everything emitted before, a lossless verifier gives the next token the
target's law for every tree, hence for whichever depth was chosen: adapting leaves the law of the output as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Policy, Request, option
from spec_sdk.policy.acceptance import Acceptance
from spec_sdk.policy.account import Account
from spec_sdk.policy.stage_times import OUTLIER, StageTimes

FIRST_USUAL = 0.7
"""Acceptance rate expected before anything was seen."""
FIRST_WEIGHT, USUAL_WEIGHT = 0.1, 0.02
"""Weight of an observed position in the run's usual acceptance rate, with which each request begins: first, at last."""
PLAIN_SAMPLES = 3
"""Plain steps timed before the first speculation: the very first may include a warm-up."""
TRIAL_CYCLES = 2
"""Cycles that a trial must be able to pay for: one alone says too little."""
RESERVE_STEPS = 4
"""Plain steps' worth of savings that are kept above the cost of a trial."""
LARGEST_DEBT_STEPS = 20
"""An unforeseen cost counts for at most so many plain steps: one compilation must not end speculation for good."""
LONGEST_WAIT = 512


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
        0.03, "speculate only where it is foreseen to beat plain decoding by so much", minimum=0, below=1
    )
    retry: int = option(
        8,
        f"plain steps until speculation is tried again; doubled each time it did not pay, up to {LONGEST_WAIT}",
        minimum=1,
    )
    refresh: int = option(32, "speculative cycles after which a plain step is timed anew", minimum=1)


class Learned:
    """What the requests of a run share: times are the machine's, and so is the account. Acceptance is a first guess."""

    def __init__(self, config: AdaptiveConfig) -> None:
        self.times = StageTimes()
        self.account = Account(config.loss)
        self.usual = FIRST_USUAL
        self.usual_weight = FIRST_WEIGHT
        self.failures = 0
        self.waited = 0
        self.wait = 0


class AdaptivePolicy(Policy):
    """Maximises expected tokens per second; falls back to plain decoding where speculation does not pay."""

    name = "adaptive"
    Config = AdaptiveConfig
    config: AdaptiveConfig

    def __init__(self, config: AdaptiveConfig, learned: Learned | None = None) -> None:
        super().__init__(config)
        self.learned = learned or Learned(config)
        self._acceptance = Acceptance(config.max, self.learned.usual)
        self._speculating = self._tried = False
        self._saved = 0.0
        self._unfed: int | None = None
        self._remaining = 1
        self._since_plain = 0
        self._depth = 1

    def for_request(self) -> AdaptivePolicy:
        return AdaptivePolicy(self.config, self.learned)

    def budget(self, request: Request) -> Budget:
        unfed = len(request.tokens) if self._unfed is None else self._unfed
        self._remaining = max(1, request.max_new_tokens - request.new_tokens)
        if self.learned.times.plain.count < PLAIN_SAMPLES or self._since_plain >= self.config.refresh:
            return Budget(0)
        going_on = self._speculating or self._is_promising(unfed)
        if not going_on and not self._may_try(unfed):
            return Budget(0)
        depth, _ = self._best(unfed)
        loss = self._loss(depth, unfed) if going_on else self._trial_loss(depth, unfed)
        return Budget(depth if self.learned.account.covers(loss) else 0)

    def _is_promising(self, unfed: int) -> bool:
        """Speculation paid when it was last tried, and this request has not tried it yet."""
        learned = self.learned
        return not (self._tried or learned.failures) and learned.times.known and self._best(unfed)[1]

    def _may_try(self, unfed: int) -> bool:
        """The wait is over, and what there is to catch up with could pay off before the answer ends."""
        times = self.learned.times
        waiting = self.learned.waited < self.learned.wait
        return not waiting and 2 * times.catch_up(unfed) <= self._remaining * times.plain.mean

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "prefill":
            self._observe_prefill(event)
        elif event["budget"]:
            self._observe_speculation(event)
        else:
            self._observe_plain(event)

    def _observe_prefill(self, event: Mapping[str, Any]) -> None:
        learned, started = self.learned, event["drafter_s"]
        learned.times.drafts_with_model = event["draft"] is not None
        learned.times.add_prefill(event["tokens"], event["seconds"] - (started or 0.0))
        # half the failures are forgiven: another prompt, another chance
        learned.failures //= 2
        learned.wait = self._wait()
        self._unfed = event["tokens"] + 1
        if started is not None:
            learned.times.add_start(event["tokens"], started)
            self._unfed = 1
            self._book(0.0, -started)

    def _observe_plain(self, event: Mapping[str, Any]) -> None:
        learned = self.learned
        learned.times.add_verify(0, event["verify_s"] + event["recover_s"])
        learned.waited += 1
        self._since_plain = 0
        self._unfed = (self._unfed or 0) + len(event["tokens"])
        self._acceptance.fade()
        self._book(len(event["tokens"]) * learned.times.plain.mean, 0.0)

    def _observe_speculation(self, event: Mapping[str, Any]) -> None:
        times, depth, drafted, new = self.learned.times, event["budget"], event["drafted"], len(event["tokens"])
        unfed, self._unfed = self._unfed or 0, new
        verify_s = event["verify_s"] + event["recover_s"]
        foreseen = times.catch_up(unfed) + times.draft(depth) + times.verify(max(drafted, 1))
        settled = times.settled
        times.add_draft(depth, drafted, unfed, event["draft_s"])
        times.add_verify(drafted, verify_s)
        self._since_plain = self._since_plain + 1 if drafted else 0
        self._count_acceptance(drafted, event["accepted"], cut=new <= event["accepted"])

        spent = event["draft_s"] + verify_s
        if settled:
            spent = min(spent, OUTLIER * foreseen)
        plain_s = new * times.plain.mean
        # without a draft the pass was a plain step, and only the asking is lost
        saved = plain_s - spent if drafted else -event["draft_s"]
        if not self._speculating:
            self._speculating, self._tried, self._saved = True, True, 0.0
        self._saved += saved
        self._book(plain_s, saved)
        if not self._best(new)[1]:
            self._give_up()

    def _count_acceptance(self, drafted: int, accepted: int, cut: bool) -> None:
        self._acceptance.observe(drafted, accepted, cut)
        learned = self.learned
        for i in range(accepted + (accepted < drafted and not cut)):
            learned.usual += learned.usual_weight * ((i < accepted) - learned.usual)
            # 1/10, 1/11, …: at first the plain mean of all observations
            learned.usual_weight = max(USUAL_WEIGHT, learned.usual_weight / (1 + learned.usual_weight))

    def _give_up(self) -> None:
        learned = self.learned
        self._speculating = False
        learned.failures = 0 if self._saved > 0 else learned.failures + 1
        learned.waited, learned.wait = 0, self._wait()

    def _wait(self) -> int:
        """Plain steps until the next trial."""
        return min(self.config.retry << max(0, self.learned.failures - 1), LONGEST_WAIT)

    def _best(self, unfed: int) -> tuple[int, bool]:
        """The best depth, and whether it beats plain decoding by the margin.

        The time is that of a cycle in which the drafter proposes something; calls that gave nothing are shared out.
        """
        times, plain = self.learned.times, self.learned.times.plain.mean
        silences = (1 / self._acceptance.proposals - 1) * times.silence.mean
        catch_up = times.catch_up(unfed) / self._remaining
        best, least = 1, math.inf
        for depth, tokens in enumerate(self._acceptance.expected_tokens(), start=1):
            per_token = (times.draft(depth) + silences + times.verify(depth)) / tokens + catch_up
            if per_token < least:
                best, least = depth, per_token
        self._depth = best
        return best, least * (1 + self.config.margin) <= plain

    def _loss(self, depth: int, unfed: int) -> float:
        """What a cycle costs beyond a plain step if nothing is accepted."""
        times = self.learned.times
        return times.catch_up(unfed) + times.draft(depth) + times.verify(depth) - times.plain.mean

    def _trial_loss(self, depth: int, unfed: int) -> float:
        """What a trial costs if nothing is accepted."""
        return self._loss(depth, unfed) + (TRIAL_CYCLES - 1) * self._loss(depth, 0)

    def _book(self, plain_s: float, saved_s: float) -> None:
        account, plain = self.learned.account, self.learned.times.plain.mean
        trial = self._trial_loss(self._depth, self._unfed or 0)
        account.book(plain_s, saved_s, most=trial + RESERVE_STEPS * plain)
        account.balance = max(account.balance, -LARGEST_DEBT_STEPS * plain)
