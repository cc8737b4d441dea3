"""Distributions, samples, and whether the one could have come from the other.

Legend: C cells of a histogram, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from spec_sdk.contracts import Budget, Drafter, Matcher, Policy, Request, Sampler, Verifier
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.remembering import Remembering
from spec_sdk.testing.tables import TableModel

SIGNIFICANCE = 1e-6
"""Probability with which a whole check may reject a correct plugin; shared among its comparisons (Bonferroni)."""
SMALLEST_EXPECTATION = 5.0
"""Cells of which less is expected are pooled: χ² is an approximation that fails for rare ones."""


class LanguageModel(Protocol):
    """What answers are compared with: the logits after any prefix."""

    @property
    def vocabulary(self) -> int: ...

    def logits(self, tokens: Sequence[int]) -> torch.Tensor: ...


class DeepestPolicy(Policy):
    """Always lets the drafter draft as deep as it likes."""

    name = "deepest"

    def budget(self, request: Request) -> Budget:
        return Budget(request.max_new_tokens)


def joint_distribution(
    model: LanguageModel,
    sampler: Sampler,
    prompt: Sequence[int],
    length: int,
    constraint: Matcher | None = None,
    answer: Sequence[int] = (),
) -> torch.Tensor:
    """The distribution of the next ``length`` tokens under plain sampling, float64 [V**length], last token fastest.

    ``constraint``: what the answer, which begins with ``answer``, may consist of.
    """
    prompt = [*prompt, *answer]
    distribution = torch.ones(1, dtype=torch.float64)
    continuations: list[list[int]] = [[]]
    for _ in range(length):
        logits = torch.stack([model.logits([*prompt, *tokens]) for tokens in continuations])
        logits = sampler.penalise(logits, prompt, continuations)
        if constraint is not None:
            # a matcher that has followed nothing, so that what a used one remembers is compared with it
            constraint.begin().apply(logits, [], [[*answer, *tokens] for tokens in continuations])
        distribution = (distribution[:, None] * sampler.probabilities(logits).double()).flatten()
        continuations = [[*tokens, t] for tokens in continuations for t in range(model.vocabulary)]
    return distribution


def cell_of(tokens: Sequence[int], vocabulary: int) -> int:
    """The index of a run of tokens in :func:`joint_distribution`."""
    cell = 0
    for token in tokens:
        cell = cell * vocabulary + token
    return cell


def sample_tokens(
    target: TableModel,
    drafter: Drafter,
    verifier: Verifier,
    sampler: Sampler,
    prompt: Sequence[int],
    length: int,
    draws: int,
    seed: int = 0,
    max_new_tokens: int | None = None,
    policy: Policy | None = None,
    constraint: Matcher | None = None,
) -> Iterator[list[int]]:
    """Answer ``prompt`` ``draws`` times through one scheduler; yields the first ``length`` tokens of each answer.

    Its requests come one after the other and draw from one stream of random numbers. ``policy`` decides the depths, and
    what it shares between requests lives on from answer to answer; by default nothing limits them. Unless
    ``max_new_tokens`` says otherwise, so many are asked for that no tree is cut short by the answer's end.
    ``constraint``: what every answer may consist of.
    """
    asked = max_new_tokens or 4 * length + 16
    policy = policy or DeepestPolicy(None)
    rng, sampler = torch.Generator().manual_seed(seed), Remembering(sampler)
    scheduler = Scheduler(target, drafter, verifier, policy)
    for number in range(draws):
        request = request_for(prompt, sampler, seed, asked)
        request.rng, request.id = rng, number
        request.constraint = None if constraint is None else constraint.begin()
        tokens: list[int] = []
        for new_tokens in scheduler.run(request):
            tokens += new_tokens
            if len(tokens) >= length:
                break
        scheduler.cancel(number)
        yield tokens[:length]


def goodness_of_fit(observed_C: torch.Tensor, expected_C: torch.Tensor) -> float:
    """Pearson's χ² test: the probability of counts at least as far from the expected ones as these.

    Both are counts with the same total. Cells of small expectation are pooled. An observation where nothing at all is
    expected has probability 0. Returns 1.0 if there is but one cell left to compare.
    """
    observed_C, expected_C = observed_C.double(), expected_C.double()
    impossible = expected_C == 0
    if bool((observed_C[impossible] > 0).any()):
        return 0.0
    rare = (expected_C < SMALLEST_EXPECTATION) & ~impossible
    common = ~rare & ~impossible
    observed, expected = observed_C[common], expected_C[common]
    pooled = expected_C[rare].sum()
    if pooled >= SMALLEST_EXPECTATION:
        observed = torch.cat((observed, observed_C[rare].sum()[None]))
        expected = torch.cat((expected, pooled[None]))
    elif pooled > 0 and expected.numel():
        # too little for a cell of its own: it joins the least common one
        least = int(expected.argmin())
        observed[least] += observed_C[rare].sum()
        expected[least] += pooled
    if expected.numel() < 2:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor(expected.numel() - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))
