"""Short answers by several pipelines in turn, on one target: what is measured before anything is predicted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spec_sdk.advice.cycles import Cycle, Shape, cycles_of
from spec_sdk.bench.cost_curve import CostCurve
from spec_sdk.bench.measuring import NODES as MEASURED
from spec_sdk.contracts import Budget, Matcher, Policy, Request
from spec_sdk.counted import counted
from spec_sdk.errors import in_a_line
from spec_sdk.pipeline import Pipeline
from spec_sdk.policy import FixedPolicy

DEEPEST, SHALLOWEST = 8, 4
"""Levels of a probe's trees, at most and at least. The answer is cut anew for smaller ones
(:mod:`spec_sdk.advice.recutting`)."""
DEEP_BEFORE = 2
"""Deep trees between two smaller ones, which tell what levels and nodes cost."""
MOST_PLAIN = 4.0
"""A probe's trees are as large as a pass over them takes at most so many plain steps: larger ones seldom pay."""
WARM_UP = 16
"""Tokens of each pipeline's answer before it is timed: what compiles or allocates does so then."""


class ProbePolicy(Policy):
    """Trees of the ``largest`` shape, and a smaller one now and then."""

    name = "probe"

    def __init__(self, largest: Shape) -> None:
        super().__init__(None)
        depth = largest.depth
        self._largest = largest
        self._smaller = (Shape(1, 1), Shape(depth - 1, 1), Shape(1, min(2, largest.width)), Shape(depth // 2, 1))
        self._cycle = 0

    def budget(self, request: Request) -> Budget:
        turn, place = divmod(self._cycle, DEEP_BEFORE + 1)
        shape = self._largest if place < DEEP_BEFORE else self._smaller[turn % len(self._smaller)]
        return Budget(shape.depth, shape.nodes)

    def observe(self, event: Mapping[str, Any]) -> None:
        self._cycle += event["event"] == "cycle"

    def for_request(self) -> ProbePolicy:
        # one sequence of shapes over all requests, so that short answers see all of them too
        return self


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A pipeline that takes its turn. ``deepest``: of its trees, where a :class:`ProbePolicy` took the place of its own
    policy.
    """

    name: str
    pipeline: Pipeline
    deepest: int | None = None


def probed(name: str, pipeline: Pipeline, curve: CostCurve) -> Contestant:
    """A pipeline as it is probed: one of a fixed tree with trees of several shapes, others by their own policy."""
    if not isinstance(pipeline.policy, FixedPolicy):
        return Contestant(name, pipeline)
    largest = largest_shape(curve, pipeline.engine.drafter.branches)
    return Contestant(name, dataclasses.replace(pipeline, policy=ProbePolicy(largest)), largest.depth)


def largest_shape(curve: CostCurve, branches: bool) -> Shape:
    """The tree to probe with. Where passes are dear it is shallower rather than a chain, if the drafter branches."""
    if not branches:
        return Shape(DEEPEST, 1)
    context, sizes = min(curve.contexts), range(1, max(MEASURED) + 1)
    most_s = MOST_PLAIN * curve.at(1, context)
    nodes = max(size for size in sizes if curve.at(size, context) <= most_s)
    depth = min(DEEPEST, max(SHALLOWEST, (nodes - 1) // 2))
    return Shape(depth, max(2, (nodes - 1) // depth))


class _Answering:
    """A contestant's answer under way."""

    def __init__(self, contestant: Contestant, prompt: Sequence[int], number: int, options: Mapping[str, Any]) -> None:
        self.contestant = contestant
        self.tokens = 0
        self.done = False
        self._events: list[dict[str, Any]] = []
        self._stream = contestant.pipeline.stream(prompt, request_id=number, emit=self._events.append, **options)

    def step(self) -> None:
        """Go on by one step. Raises what the request fails with."""
        new = next(self._stream, None)
        self.done = new is None
        self.tokens += len(new or ())

    @property
    def cycles(self) -> list[Cycle]:
        return cycles_of(self._events)


@dataclasses.dataclass
class Answers:
    """Contestant → prompt → cycles, as far as time allowed; ``failed``: contestant → why it was left out.

    ``most_tokens``: of an answer, as it was asked for.
    """

    cycles: dict[str, dict[int, list[Cycle]]] = dataclasses.field(default_factory=dict)
    most_tokens: int | None = None
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def take_turns(
    contestants: Sequence[Contestant],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    seconds: float,
    ignore_eos: bool = False,
    constraint: Matcher | None = None,
    drop: Callable[[Answers], set[str]] = lambda answers: set(),
    tell: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Every prompt answered by all contestants, until about ``seconds`` have passed.

    They take turns by steps, the one with the fewest tokens first, so that whatever else the machine does slows all of
    them alike. At least one prompt is answered; another only if it is predicted to end in time. The first contestant is
    plain decoding, and never dropped. ``drop``: those that need not go on, asked after every prompt. A contestant that
    fails is left out; what plain decoding fails with is raised.
    """
    answers, going = Answers({each.name: {} for each in contestants}, new_tokens), list(contestants)
    plain = contestants[0]
    options = {"max_new_tokens": new_tokens, "ignore_eos": ignore_eos, "constraint": constraint}
    _together(going, prompts[0], 0, {**options, "max_new_tokens": min(WARM_UP, new_tokens)}, answers)
    began = time.perf_counter()
    for number, prompt in enumerate(prompts):
        going = [each for each in going if each.name in answers.cycles]
        round_began = time.perf_counter()
        for name, cycles in _together(going, prompt, number, options, answers).items():
            answers.cycles[name][number] = cycles
        took = time.perf_counter() - round_began
        tell(f"prompt {number + 1} of {len(prompts)}: {counted(len(going), 'pipeline')} in {took:.1f} s")
        dropped = drop(answers) - {plain.name}
        left = [each for each in going if each.name not in dropped and each.name in answers.cycles]
        share, going = len(left) / len(going), left
        if len(going) < 2 or time.perf_counter() - began + share * took > seconds:
            break
    return answers


def _together(
    contestants: Sequence[Contestant],
    prompt: Sequence[int],
    number: int,
    options: Mapping[str, Any],
    answers: Answers,
) -> dict[str, list[Cycle]]:
    """One prompt answered by all, step by step; those that answered with anything. Failures go to ``answers``."""
    answering = [_Answering(each, prompt, number, options) for each in contestants]
    while going := [each for each in answering if not each.done]:
        each = min(going, key=lambda one: one.tokens)
        try:
            each.step()
        # a plugin may raise anything, and what the others measured counts
        except Exception as error:
            if each.contestant is contestants[0]:
                raise
            name = each.contestant.name
            answers.failed[name] = in_a_line(error)
            answers.cycles.pop(name, None)
            each.done = True
    return {
        each.contestant.name: each.cycles
        for each in answering
        if each.contestant.name not in answers.failed and each.cycles
    }
