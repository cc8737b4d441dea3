"""An invented machine: it plays requests with a policy, and tells the policy the times that the stages would take."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.contracts import Policy, RequestState

Rate = Callable[[int], float]
"""Chance that a drafted token is accepted, by the number of new tokens so far."""


@dataclass(frozen=True)
class Machine:
    """Stage times in seconds. ``noise``: standard deviation of each time, as a share of it.

    ``draft`` and ``draft_per_token``: drafting to depth d takes the sum with d times the second; ``feed``: per
    committed token that the draft model has not seen, beyond the few of the last cycle; ``verify_per_token``: what a
    drafted token adds to a ``plain`` step; ``silent``: share of calls to which the drafter has nothing to propose.
    """

    plain: float = 1.0
    draft: float = 0.0
    draft_per_token: float = 0.1
    verify_per_token: float = 0.02
    feed: float = 0.0
    prefill: float = 0.05
    silent: float = 0.0
    noise: float = 0.0

    def cycle(self, depth: int) -> float:
        """A cycle that drafts to ``depth``."""
        return self.draft + self.draft_per_token * depth + self.plain + self.verify_per_token * depth

    def best_depth(self, rate: float, deepest: int) -> int:
        """The depth of the most tokens per second when every token is accepted at ``rate``; 0 is plain decoding."""

        def per_second(depth: int) -> float:
            tokens = sum(rate**i for i in range(depth + 1))
            return tokens / (self.cycle(depth) if depth else self.plain)

        return max(range(deepest + 1), key=per_second)


@dataclass
class Played:
    """What came of a run. ``seconds``: decoding and the drafter's starts; ``plain_s``: the same run, plainly."""

    tokens: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0
    budgets: list[int] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Speed relative to plain decoding."""
        return self.plain_s / self.seconds


def play(
    machine: Machine, policy: Policy, rates: list[Rate], new_tokens: int, prompt: int = 60, seed: int = 0
) -> Played:
    """One request per entry of ``rates``, of ``new_tokens`` each."""
    rng, played = random.Random(seed), Played()

    def noisy(seconds: float) -> float:
        return seconds * max(0.2, 1 + machine.noise * rng.gauss(0, 1))

    for rate in rates:
        one = policy.for_request()
        nothing: Any = None
        state = RequestState([0] * prompt, prompt, new_tokens, nothing, nothing)
        request = state.view
        started = None
        if one.budget(request).depth:
            started = noisy(machine.feed * prompt)
            played.seconds += started
        seconds = machine.prefill * prompt + (started or 0.0)
        draft = None if machine.feed == 0 else "a draft model"
        one.observe(
            {"event": "prefill", "seconds": seconds, "drafter_s": started, "tokens": prompt - 1, "draft": draft}
        )
        unfed = 1 if started is not None else prompt
        while (left := new_tokens - request.new_tokens) > 0:
            depth = min(one.budget(request).depth, left - 1)
            drafted = 0 if rng.random() < machine.silent else depth
            accepted = 0
            while accepted < drafted and rng.random() < rate(request.new_tokens):
                accepted += 1
            draft_s = verify_s = 0.0
            if depth:
                catch_up = machine.feed * unfed if unfed > depth + 1 else 0.0
                draft_s = noisy(machine.draft + machine.draft_per_token * drafted + catch_up)
            verify_s = noisy(machine.plain + machine.verify_per_token * drafted)
            tokens = [0] * (accepted + 1)
            state.tokens.extend(tokens)
            state.step += 1
            unfed = len(tokens) if depth else unfed + 1
            event = {"event": "cycle", "budget": depth, "drafted": drafted, "accepted": accepted, "tokens": tokens}
            one.observe({**event, "draft_s": draft_s, "verify_s": verify_s, "recover_s": 0.0})
            played.seconds += draft_s + verify_s
            played.plain_s += machine.plain * len(tokens)
            played.budgets.append(depth)
        played.tokens += request.new_tokens
    return played


def steady(rate: float) -> Rate:
    """The same acceptance all along."""
    return lambda _: rate


def switching(before: float, after: float, at: int) -> Rate:
    """One acceptance for the first ``at`` tokens, another for the rest."""
    return lambda n: before if n < at else after


def alternating(one: float, other: float, every: int) -> Rate:
    """Two acceptances in turn, ``every`` tokens each."""
    return lambda n: (one, other)[n // every % 2]
