"""An invented machine: it plays requests with a policy, and tells the policy the times that the stages would take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.contracts import CostCurve, Policy, RequestState

Rate = Callable[[int], float]
"""Chance that a drafted token is accepted, by the number of new tokens so far: of a chain."""


@dataclass(frozen=True)
class Machine:
    """Stage times in seconds. ``noise``: standard deviation of each time, as a share of it.

    ``draft`` and ``draft_per_token``: drafting to depth d takes the sum with d times the second; ``feed``: per
    committed token that the draft model has not seen, beyond the few of the last cycle; ``verify_per_token``: what a
    drafted token adds to a ``plain`` step; ``silent``: share of calls to which the drafter has nothing to propose.
    ``widest``: nodes per level that its drafter grows at most. ``curve``: what a pass of so many nodes takes, relative
    to one of one node; then in place of ``verify_per_token``, and for the levels of a draft as well.
    """

    plain: float = 1.0
    draft: float = 0.0
    draft_per_token: float = 0.1
    verify_per_token: float = 0.02
    feed: float = 0.0
    prefill: float = 0.05
    silent: float = 0.0
    noise: float = 0.0
    widest: int = 1
    curve: CostCurve | None = None

    def wide(self, nodes: int) -> float:
        """A pass of so many nodes, relative to one of one."""
        return 1.0 if self.curve is None else self.curve.at(nodes, 0)

    def drafting(self, depth: int, width: int) -> float:
        """A draft of ``depth`` levels of ``width`` nodes: all but the last are fed, and before them the root."""
        levels = 1 + (depth - 1) * self.wide(width) if depth else 0.0
        return self.draft + self.draft_per_token * levels

    def verifying(self, nodes: int) -> float:
        """The target's pass over so many nodes."""
        if self.curve is None:
            return self.plain + self.verify_per_token * (nodes - 1)
        return self.plain * self.wide(nodes)

    def cycle(self, depth: int, width: int = 1) -> float:
        """A cycle that drafts to ``depth``."""
        return self.drafting(depth, width) + self.verifying(1 + depth * width)

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
    widths: list[int] = field(default_factory=list)
    """Of the trees that were drafted, cycle by cycle; 0 in a plain step."""

    @property
    def ratio(self) -> float:
        """Speed relative to plain decoding."""
        return self.plain_s / self.seconds


def rank_of(u: float, rate: float, siblings: float) -> float:
    """Which of a level's nodes, the most likely first, is accepted in a level with random number ``u``: of w nodes none
    is with a chance of (1 - ``rate``) w^-``siblings``.
    """
    if u < rate:
        return 1
    return ((1 - rate) / (1 - u)) ** (1 / siblings) if siblings else math.inf


def play(
    machine: Machine,
    policy: Policy,
    rates: list[Rate],
    new_tokens: int,
    prompt: int = 60,
    seed: int = 0,
    siblings: float = 0.0,
) -> Played:
    """One request per entry of ``rates``, of ``new_tokens`` each."""
    rng, played = random.Random(seed), Played()

    def noisy(seconds: float) -> float:
        return seconds * max(0.2, 1 + machine.noise * rng.gauss(0, 1))

    for rate in rates:
        one = policy.for_request()
        nothing: Any = None
        state = RequestState([0] * prompt, prompt, new_tokens, nothing, nothing, ops=nothing)
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
            budget = one.budget(request)
            depth = min(budget.depth, left - 1)
            drafted = 0 if rng.random() < machine.silent else depth
            width = min(machine.widest, max(1, (budget.nodes - 1) // depth)) if drafted else 0
            ranks: list[int] = []
            while len(ranks) < drafted:
                rank = rank_of(rng.random(), rate(request.new_tokens), siblings)
                if rank > width:
                    break
                ranks.append(math.ceil(rank))
            accepted = len(ranks)
            draft_s = verify_s = 0.0
            if depth:
                catch_up = machine.feed * unfed if unfed > depth + 1 else 0.0
                draft_s = noisy(machine.drafting(drafted, width) + catch_up)
            verify_s = noisy(machine.verifying(1 + drafted * width))
            tokens = [0] * (accepted + 1)
            prefix = len(request.tokens) - 1
            state.tokens.extend(tokens)
            state.step += 1
            unfed = len(tokens) if depth else unfed + 1
            event = {"event": "cycle", "budget": depth, "drafted": drafted, "accepted": accepted, "tokens": tokens}
            tree = {"tree_nodes": 1 + drafted * width, "level_sizes": [width] * drafted, "accepted_ranks": ranks}
            times = {"draft_s": draft_s, "verify_s": verify_s, "recover_s": 0.0, "prefix": prefix}
            one.observe({**event, **tree, **times})
            played.seconds += draft_s + verify_s
            played.plain_s += machine.plain * len(tokens)
            played.budgets.append(depth)
            played.widths.append(width)
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
