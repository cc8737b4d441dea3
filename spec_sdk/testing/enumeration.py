"""What one cycle of the scheduler emits, with its exact probability: every draw and every verdict is tried.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import Drafter, Matcher, Policy, Random, Request, RequestState, Sampler, Verifier
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.engine.target import Target
from spec_sdk.ops import DrawnTree, Rows
from spec_sdk.ops.inversion import draw
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.remembering import Remembering
from spec_sdk.testing.statistics import DeepestPolicy, LanguageModel, cell_of, joint_distribution
from spec_sdk.testing.undecided import Chooser, NotEnumerable, Undecided, outcomes
from spec_sdk.tree import DraftDistribution

ENUMERATED = 1e-6
"""Enumerated probabilities that differ by less differ by rounding alone."""
MOST_OUTCOMES = 200_000


class Enumerating(Sampler):
    """Another sampler, with what drafters draw handed to a :class:`Chooser`.

    ``own_draws``: tokens are drawn by the sampler's own ``draw`` and ``draw_from``, from undecided numbers.
    """

    name = "enumerating"
    chooser: Chooser

    def __init__(self, inner: Sampler, own_draws: bool = False) -> None:
        super().__init__(inner.config, inner.params)
        self.inner = Remembering(inner)
        self.drawing = inner if own_draws else None

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return self.inner.probabilities(logits_NV)

    def choices(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return self.inner.choices(logits_NV)

    def penalise(self, logits_NV: torch.Tensor, prefix: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        return self.inner.penalise(logits_NV, prefix, paths)

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        return self.inner.rows(tree, logits_NV)

    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        if self.drawing is not None:
            return self.drawing.draw(p_V, self._number(random))
        if isinstance(random, torch.Generator):
            p_V = p_V.double()
            return self.chooser.choose((p_V / p_V.sum()).tolist())
        return draw(p_V, random)

    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        if self.drawing is not None:
            return self.drawing.draw_from(distribution, self._number(random))
        return self.draw(distribution.q_V, random)

    def _number(self, random: Random) -> Any:
        return Undecided(self.chooser) if isinstance(random, torch.Generator) else random


class EnumeratedRequest(Request):
    """A request whose random numbers are undecided: a rule of acceptance is enumerated as it stands."""

    chooser: Chooser

    @staticmethod
    def of(state: RequestState, chooser: Chooser) -> EnumeratedRequest:
        request = EnumeratedRequest(state)
        object.__setattr__(request, "chooser", chooser)
        return request

    def uniforms(self, count: int) -> list[Any]:
        return [Undecided(self.chooser) for _ in range(count)]


def cycle_distribution(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    sampler: Sampler,
    prompt: Sequence[int],
    policy: Policy | None = None,
    own_draws: bool = False,
    limit: int = MOST_OUTCOMES,
    constraint: Matcher | None = None,
) -> dict[tuple[int, ...], float]:
    """What one cycle of the scheduler emits after ``prompt``, with its probability. ``policy`` may limit it, and
    ``constraint`` says what the answer may consist of.

    Raises NotEnumerable where random numbers are used otherwise than by drawing tokens with the request's sampler and
    by comparing what its ``uniforms`` gave, and for more than ``limit`` outcomes.
    """
    enumerating = Enumerating(sampler, own_draws)
    scheduler = Scheduler(target, drafter, verifier, policy or DeepestPolicy(None))

    def cycle(chooser: Chooser) -> tuple[int, ...]:
        enumerating.chooser = chooser
        state = request_for(prompt, enumerating, 0, max_new_tokens=64)
        state.constraint = None if constraint is None else constraint.begin()
        state.view = EnumeratedRequest.of(state, chooser)
        before = state.rng.get_state()
        # closed here, or what the plugin's finish raises would be lost in the collector
        with contextlib.closing(scheduler.run(state)) as steps:
            emitted = tuple(next(steps))
        if not torch.equal(before, state.rng.get_state()):
            raise NotEnumerable("the request's generator was used directly")
        return emitted

    distribution: dict[tuple[int, ...], float] = {}
    for emitted, probability in outcomes(cycle, limit):
        distribution[emitted] = distribution.get(emitted, 0.0) + probability
    return distribution


def completed_distribution(
    emitted: Mapping[tuple[int, ...], float],
    target: LanguageModel,
    sampler: Sampler,
    prompt: Sequence[int],
    length: int,
    constraint: Matcher | None = None,
) -> torch.Tensor:
    """The joint distribution of ``length`` tokens, float64 [V**length]: of one cycle (:func:`cycle_distribution`), then
    of plain sampling.
    """
    distribution = torch.zeros(target.vocabulary**length, dtype=torch.float64)
    for tokens, probability in emitted.items():
        rest = joint_distribution(target, sampler, prompt, length - len(tokens), constraint, tokens)
        first = cell_of(tokens, target.vocabulary) * rest.numel()
        distribution[first : first + rest.numel()] += probability * rest
    return distribution


@dataclass(frozen=True)
class Difference:
    """Where two joint distributions differ most: by ``off``, at these tokens, which one gives the probability
    ``given`` and the other ``expected``.
    """

    off: float
    tokens: tuple[int, ...]
    given: float
    expected: float

    def __str__(self) -> str:
        return (
            f"off the target's by {self.off:.1e} (enumerated): it gives the tokens {list(self.tokens)} with "
            f"probability {self.given:.6g}, the target {self.expected:.6g}"
        )


def difference(
    target: Any,
    drafter: Drafter,
    verifier: Verifier,
    sampler: Sampler,
    prompt: Sequence[int],
    policy: Policy | None = None,
    own_draws: bool = False,
    limit: int = MOST_OUTCOMES,
    constraint: Matcher | None = None,
) -> Difference:
    """Where the joint distribution of a cycle's tokens, completed by plain sampling, differs most from the target's.

    ``target`` is a table. The distribution is of as many tokens as the cycle may emit, the bonus token included. What
    is right after every prefix is right over a whole answer where drafter and verifier remember nothing from cycle to
    cycle. Raises as :func:`cycle_distribution` does.
    """
    emitted = cycle_distribution(target, drafter, verifier, sampler, prompt, policy, own_draws, limit, constraint)
    length = max(map(len, emitted))
    remembering = Remembering(sampler)
    expected = joint_distribution(target, remembering, prompt, length, constraint)
    given = completed_distribution(emitted, target, remembering, prompt, length, constraint)
    off = (given - expected).abs()
    worst = int(off.argmax())
    tokens = tuple(worst // target.vocabulary**place % target.vocabulary for place in reversed(range(length)))
    return Difference(float(off[worst]), tokens, float(given[worst]), float(expected[worst]))
