"""``break_even`` beside the best fixed depth, on invented machines, for a draft model whose probabilities are right.

Legend: times are in plain steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spec_sdk.contracts import Budget, Policy, SamplingParams
from spec_sdk.policy import BreakEvenConfig, BreakEvenPolicy, FixedConfig, FixedPolicy
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.guessing import worthwhile

PROMPT, TOKENS, ANSWERS = 250, 96, 24
DEPTHS = (0, 1, 2, 3, 5)
NOISE = 0.12


@dataclass(frozen=True)
class Machine:
    """``call`` and ``level``: what a draft takes, and each of its levels; ``node``: what one more adds to the target's
    pass; ``feed``: each token that the draft model has not seen.
    """

    level: float
    call: float
    node: float
    feed: float


MACHINES = {
    "weights in 16 bits on two cores": Machine(0.06, 0.08, 0.03, 0.004),
    "weights in 4 bits on two cores": Machine(0.2, 0.1, 0.12, 0.035),
    "a GPU": Machine(0.04, 0.05, 0.01, 0.001),
}
Chances = Callable[[random.Random], float]
TEXTS: dict[str, Chances] = {
    "a third of it is sure": lambda choose: 0.95 if choose.random() < 0.35 else choose.uniform(0.05, 0.6),
    "nothing is": lambda choose: 0.42,
}


class Draft:
    """A chain whose tokens are accepted with the chances that it knows of, or, drawn, does not look at."""

    def __init__(self, machine: Machine, chances: Chances, drawn: bool, choose: random.Random) -> None:
        self._machine, self._chances, self._drawn, self._choose = machine, chances, drawn, choose

    def chain(self, budget: Budget, most: int) -> tuple[list[float], float]:
        """The chances of its tokens, and what drafting them took."""
        found, reached, seconds = list[float](), 1.0, self._machine.call
        while len(found) < most and (self._drawn or not found or reached >= budget.level_cost):
            seconds += self._machine.level
            found.append(self._chances(self._choose))
            reached *= found[-1]
        if not self._drawn:
            joint = [1.0]
            for chance in found:
                joint.append(joint[-1] * chance)
            found = found[: worthwhile(joint[1:], budget.node_costs)]
        return found, seconds


def speed(policy: Policy, machine: Machine, chances: Chances, drawn: bool) -> float:
    """Relative to plain decoding, the draft model's starts included."""
    choose, total = random.Random(0), 0.0
    draft = Draft(machine, chances, drawn, choose)

    def noisy(seconds: float) -> float:
        return seconds * max(0.3, 1 + NOISE * choose.gauss(0, 1))

    for _ in range(ANSWERS):
        state, one = request_for([1] * PROMPT, reference_sampler(SamplingParams()), 0), policy.for_request()
        state.max_new_tokens = TOKENS
        started = noisy(machine.feed * PROMPT) if one.budget(state.view).depth else None
        told = {"event": "prefill", "tokens": PROMPT, "drafter_s": started, "draft": "a draft model"}
        one.observe({**told, "seconds": 0.1 * PROMPT + (started or 0.0)})
        total += started or 0.0
        unfed = PROMPT if started is None else 1
        while (left := TOKENS - state.view.new_tokens) > 0:
            budget = one.budget(state.view)
            depth, found, draft_s = min(budget.depth, left - 1), list[float](), 0.0
            if depth:
                found, draft_s = draft.chain(budget, depth)
                draft_s = noisy(draft_s + (machine.feed * unfed if unfed > depth + 1 else 0.0))
            accepted = 0
            while accepted < len(found) and choose.random() < found[accepted]:
                accepted += 1
            verify_s, tokens = noisy(1 + machine.node * len(found)), [0] * (accepted + 1)
            state.tokens.extend(tokens)
            unfed = len(tokens) if depth else unfed + 1
            tree = {"tree_nodes": 1 + len(found), "drafted": len(found), "accepted": accepted, "tokens": tokens}
            times = {"prefix": len(state.tokens), "draft_s": draft_s, "verify_s": verify_s, "recover_s": 0.0}
            one.observe({"event": "cycle", "budget": depth, **tree, **times})
            total += draft_s + verify_s
    return ANSWERS * TOKENS / total


@pytest.mark.parametrize("drawn", [False, True], ids=["chosen", "drawn"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MACHINES)
def test_it_is_nearly_as_fast_as_the_best_fixed_depth(name: str, text: str, drawn: bool) -> None:
    machine, chances = MACHINES[name], TEXTS[text]
    fixed = [speed(FixedPolicy(FixedConfig(depth)), machine, chances, drawn) for depth in DEPTHS]
    found = speed(BreakEvenPolicy(BreakEvenConfig(costs="learn")), machine, chances, drawn)
    assert found > 0.94 * max(fixed), f"{found:.2f}, fixed depths {DEPTHS}: {fixed}"
