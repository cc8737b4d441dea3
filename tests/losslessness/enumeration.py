"""Laws by exact enumeration: a randomised procedure is run once for every way in which its choices can fall.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from spec_sdk.contracts import Drafter, Policy, Random, Request, RequestState, SamplingParams, Verifier
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.remembering import Remembering
from spec_sdk.testing.statistics import DeepestPolicy, cell_of, joint_law
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import DraftDistribution
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler

Outcome = TypeVar("Outcome")


ROUNDING = 1e-7
"""Where float32 sums differ by as little, as those of a tile and of its tokens do, nothing is to be chosen."""


class Chooser:
    """Makes the choices of one run: first those of ``script``, then always the first possible one.

    ``untried`` holds the scripts of the runs in which a choice made here falls otherwise.
    """

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.weight = 1.0
        self.untried: list[list[int]] = []
        self._made: list[int] = []

    def choose(self, weights: Sequence[float]) -> int:
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        at = len(self._made)
        if at < len(self.script):
            choice = self.script[at]
        else:
            choice, *others = possible
            self.untried += [[*self._made, other] for other in others]
        self._made.append(choice)
        self.weight *= weights[choice]
        return choice


def outcomes(run: Callable[[Chooser], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Every outcome of ``run`` with its probability; the same outcome may come several times."""
    scripts: list[list[int]] = [[]]
    while scripts:
        chooser = Chooser(scripts.pop())
        yield run(chooser), chooser.weight
        scripts += chooser.untried


class EnumeratingSampler(ReferenceSampler):
    """The reference sampler with what drafters draw handed to a :class:`Chooser`."""

    name = "enumerating"
    chooser: Chooser

    def draw(self, p_V: torch.Tensor, random: Random) -> int:
        p_V = p_V.double()
        return self.chooser.choose((p_V / p_V.sum()).tolist())


class Undecided:
    """A number drawn uniformly from [0, 1) that is known no better than it has been looked at.

    Comparing it with a threshold is a choice, which narrows it down for the comparisons after it; so a procedure that
    compares random numbers can be enumerated as it stands. Products and differences share what is known.
    """

    def __init__(
        self, chooser: Chooser, factor: float = 1.0, offset: float = 0.0, known: list[float] | None = None
    ) -> None:
        self.chooser, self.factor, self.offset = chooser, factor, offset
        self.known = [0.0, 1.0] if known is None else known

    def __mul__(self, by: float) -> Undecided:
        return Undecided(self.chooser, self.factor * by, self.offset * by, self.known)

    def __sub__(self, by: float) -> Undecided:
        return Undecided(self.chooser, self.factor, self.offset - by, self.known)

    def __lt__(self, threshold: float) -> bool:
        if self.factor == 0:
            return self.offset < threshold
        low, high = self.known
        border = (threshold - self.offset) / self.factor
        if border - low < ROUNDING or high - border < ROUNDING:
            return border - low > high - border
        below = self.chooser.choose([high - border, border - low]) == 1
        self.chooser.weight /= high - low
        self.known[below] = border
        return below


class EnumeratingExact(EnumeratingSampler, ExactSampler):
    """The exact sampler's own rows, and its own draws from draft logits, on undecided numbers."""

    name = "enumerating exact"

    def draw_from(self, law: DraftDistribution, random: Random) -> int:
        number: Any = Undecided(self.chooser)
        return super().draw_from(law, number)


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


def cycle_law(
    target: TableModel,
    make_drafter: Callable[[], Drafter],
    verifier: Verifier,
    params: SamplingParams,
    prompt: Sequence[int],
    sampler_class: type[EnumeratingSampler] = EnumeratingSampler,
    policy: Policy | None = None,
) -> dict[tuple[int, ...], float]:
    """What one cycle of the scheduler emits after ``prompt``, with its probability. ``policy`` may limit it."""
    inner = sampler_class(None, params)
    sampler = Remembering(inner)
    scheduler = Scheduler(target, make_drafter(), verifier, policy or DeepestPolicy(None))

    def cycle(chooser: Chooser) -> tuple[int, ...]:
        inner.chooser = chooser
        state = request_for(prompt, sampler, 0, max_new_tokens=64)
        state.view = EnumeratedRequest.of(state, chooser)
        return tuple(next(scheduler.run(state)))

    law: dict[tuple[int, ...], float] = {}
    for emitted, probability in outcomes(cycle):
        law[emitted] = law.get(emitted, 0.0) + probability
    return law


def completed_law(
    emitted: Mapping[tuple[int, ...], float],
    target: TableModel,
    params: SamplingParams,
    prompt: Sequence[int],
    length: int,
) -> torch.Tensor:
    """The joint law of ``length`` tokens, float64 [V**length]: one cycle's (:func:`cycle_law`), then plain sampling."""
    law, sampler = torch.zeros(target.vocabulary**length, dtype=torch.float64), ReferenceSampler(None, params)
    for tokens, probability in emitted.items():
        rest = joint_law(target, sampler, [*prompt, *tokens], length - len(tokens))
        first = cell_of(tokens, target.vocabulary) * rest.numel()
        law[first : first + rest.numel()] += probability * rest
    return law


def deviation(
    target: TableModel,
    make_drafter: Callable[[], Drafter],
    verifier: Verifier,
    params: SamplingParams,
    prompt: Sequence[int],
    sampler_class: type[EnumeratingSampler] = EnumeratingSampler,
    policy: Policy | None = None,
) -> float:
    """The most by which the joint law of a cycle's tokens, completed by plain sampling, differs from the target's.

    It is of as many tokens as the cycle may emit, the bonus token included. What is right after every prefix is right
    over a whole answer where drafter and verifier remember nothing from cycle to cycle.
    """
    emitted = cycle_law(target, make_drafter, verifier, params, prompt, sampler_class, policy)
    length = max(map(len, emitted))
    expected = joint_law(target, ReferenceSampler(None, params), prompt, length)
    return float((completed_law(emitted, target, params, prompt, length) - expected).abs().max())
