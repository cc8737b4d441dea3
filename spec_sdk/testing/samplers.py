"""Does a sampler do what its parameters say, and is its arithmetic of acceptance right?

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.testing.defaults import MakeSampler
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit

PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0, top_k=7),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=0.9, min_p=0.15),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.85, min_p=0.02),
)
TOLERANCE = 1e-5


def check_sampler(make_sampler: MakeSampler, *, draws: int = 4000, seed: int = 0) -> None:
    """Raise AssertionError unless the samplers that ``make_sampler`` makes do what their parameters say.

    Probabilities equal those of a slow reference (temperature, top-k, top-p, min-p, in that order) on random logits;
    greedy puts everything on the first of the largest logits, and ``choices`` names it; ``draw`` follows the
    distribution it is given and ``accepts`` min(1, p/q) (χ² over ``draws`` each); ``residual`` and ``without`` are
    norm(max(p − q, 0)) and p without a token. All random numbers come from the generator that is passed.
    """
    rng = torch.Generator().manual_seed(seed)
    logits_NV = 2.5 * torch.randn((6, 50), generator=rng)
    _check_greedy(make_sampler(SamplingParams()), logits_NV)
    for params in PARAMS:
        p_NV = make_sampler(params).probabilities(logits_NV)
        assert p_NV.dtype == torch.float32, f"{params}: probabilities are {p_NV.dtype}, they must be float32"
        for row, (p_V, logits_V) in enumerate(zip(p_NV.tolist(), logits_NV.tolist(), strict=True)):
            expected_V = _probabilities_by_hand(logits_V, params)
            worst = max(abs(a - b) for a, b in zip(p_V, expected_V, strict=True))
            assert worst < TOLERANCE, f"{params}: row {row} of the probabilities is off by {worst:.1e}"
    sampler = make_sampler(SamplingParams(temperature=1.0))
    p_V, q_V = sampler.probabilities(logits_NV[:2, :12] / 2)
    _check_arithmetic(sampler, p_V, q_V)
    _check_randomness(sampler, p_V, draws, rng)


def _check_greedy(sampler: Sampler, logits_NV: torch.Tensor) -> None:
    assert sampler.greedy, "temperature 0 must be greedy"
    logits_NV = logits_NV.clone()
    logits_NV[0, [3, 17, 40]] = logits_NV.max() + 1
    largest_N = [row.index(max(row)) for row in logits_NV.tolist()]
    expected_NV = torch.zeros_like(logits_NV)
    for row, token in enumerate(largest_N):
        expected_NV[row, token] = 1
    assert torch.equal(sampler.probabilities(logits_NV), expected_NV), (
        "greedy probabilities must be 1 at the first of the largest logits and 0 elsewhere"
    )
    choices = sampler.choices(logits_NV)
    assert choices == largest_N, f"the greedy choices are {choices}, the largest logits are at {largest_N}"


def _check_arithmetic(sampler: Sampler, p_V: torch.Tensor, q_V: torch.Tensor) -> None:
    p, q = p_V.tolist(), q_V.tolist()
    surplus = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    _compare("residual(p, q)", sampler.residual(p_V, q_V), [x / sum(surplus) for x in surplus])
    token = int(p_V.argmax())
    rest = [0.0 if i == token else x / (1 - p[token]) for i, x in enumerate(p)]
    _compare("without(p, token)", sampler.without(p_V, token), rest)
    assert p_V.tolist() == p and q_V.tolist() == q, "residual and without must not write to what they are given"
    equal = sampler.residual(p_V, p_V)
    assert abs(float(equal.sum()) - 1) < TOLERANCE and bool((equal >= 0).all()), (
        "residual(p, p) has nothing left to go on from; it must be some distribution all the same"
    )


def _compare(what: str, given_V: torch.Tensor, expected_V: list[float]) -> None:
    worst = max(abs(a - b) for a, b in zip(given_V.tolist(), expected_V, strict=True))
    assert worst < TOLERANCE, f"{what} is off by {worst:.1e}"


def _check_randomness(sampler: Sampler, p_V: torch.Tensor, draws: int, rng: torch.Generator) -> None:
    p_V = p_V.clone()
    p_V[[0, 5, p_V.shape[0] - 1]] = 0
    p_V /= p_V.sum()
    drawn = torch.tensor([sampler.draw(p_V, rng) for _ in range(draws)])
    counts = {"draw": (torch.bincount(drawn, minlength=p_V.shape[0]), p_V)}
    for p, q in ((0.2, 0.5), (0.31, 1.0), (0.5, 0.2), (0.0, 0.4), (1.0, 1.0)):
        accepted = sum(sampler.accepts(p, q, rng) for _ in range(draws))
        rate = min(1.0, p / q)
        counts[f"accepts({p}, {q})"] = torch.tensor([accepted, draws - accepted]), torch.tensor([rate, 1 - rate])
    for what, (observed, law) in counts.items():
        probability = goodness_of_fit(observed, law * draws)
        assert probability > SIGNIFICANCE / len(counts), f"{what} does not follow its law (χ² {probability:.1e})"
    _check_source("draw", lambda generator: sampler.draw(p_V, generator))
    _check_source("accepts", lambda generator: sampler.accepts(0.5, 1.0, generator))


def _check_source(what: str, act: Callable[[torch.Generator], int]) -> None:
    """The same generator state must give the same outcome, whatever the global generator does."""
    runs = []
    for noise in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            generator = torch.Generator().manual_seed(11)
            runs.append([act(generator) for _ in range(60)])
    assert runs[0] == runs[1], f"{what} takes random numbers from elsewhere than the generator it is given"


def _probabilities_by_hand(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p, from their definitions, for one row without ties."""
    top = max(logits)
    p = _normalised([math.exp((x - top) / params.temperature) for x in logits])
    order = sorted(range(len(p)), key=lambda token: -p[token])
    if params.top_k:
        kept = set(order[: params.top_k])
        p = _normalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    if params.top_p < 1:
        kept, mass = set(), 0.0
        for token in order:
            if mass >= params.top_p:
                break
            kept.add(token)
            mass += p[token]
        p = _normalised([x if i in kept else 0.0 for i, x in enumerate(p)])
    floor = params.min_p * max(p)
    return _normalised([x if x >= floor else 0.0 for x in p])


def _normalised(mass: list[float]) -> list[float]:
    total = sum(mass)
    return [x / total for x in mass]
