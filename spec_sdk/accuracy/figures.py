"""The figures of samplers beside one another, computed from a run's records and from nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spec_sdk.accuracy.metrics import overall
from spec_sdk.accuracy.records import AccuracyRun, SamplerChoice, ScoredAnswer
from spec_sdk.bench.records import VANILLA
from spec_sdk.bench.totals import acceptance_rate, mean_accepted_tokens
from spec_sdk.common_prefix import common_prefix
from spec_sdk.metrics import ratio

Place = tuple[int, str]
"""A seed's number, from 0, and a prompt."""


@dataclass(frozen=True)
class OverSeeds:
    """``mean`` of ``count`` numbers, one of each seed; ``deviation``: their standard deviation (by count − 1), None of
    one.
    """

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class SamplerFigures:
    """One sampler, over the prompts that all of a run answered, under every seed. None: nothing to compute it from.

    ``scores`` by metric, of all prompts of a seed together. ``changes``: its score less the baseline's under the same
    seed. ``sampling_s``: seconds in accepting and drawing, over the whole run. ``sampling_saved``: the share of the
    baseline's that it saves, ``1 - own / baseline``, the paper's "Δ% Profiling Time"; ``decode_saved``: the same of all
    decoding. ``step_s``: seconds per step, with their deviation over steps. ``equal`` of ``compared`` answers are the
    baseline's, token by token; the first ``common_tokens`` of an answer on average.
    """

    choice: SamplerChoice
    answers: int
    scores: Mapping[str, OverSeeds]
    changes: Mapping[str, OverSeeds]
    sampling_s: float | None
    sampling_saved: OverSeeds | None
    decode_saved: OverSeeds | None
    step_s: tuple[float, float] | None
    acceptance_rate: OverSeeds | None
    mean_accepted_tokens: OverSeeds | None
    equal: int
    compared: int
    common_tokens: float | None
    mean_tokens: float | None


def over_seeds(values: Iterable[float | None]) -> OverSeeds | None:
    """Of those that are numbers; None if there is none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    return OverSeeds(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def figures_of(run: AccuracyRun) -> list[SamplerFigures]:
    """Of every sampler that answered, in the order of the run; plain decoding, if it took part, first."""
    by = _by_candidate(run)
    choices = {choice.candidate: choice for choice in run.choices}
    if VANILLA in by:
        first = run.choices[0].baseline
        choices = {VANILLA: SamplerChoice(VANILLA, VANILLA, first), **choices}
    there = {name: choice for name, choice in choices.items() if name in by}
    return [_figures(run, choice, by[name], by.get(choice.baseline, {})) for name, choice in there.items()]


def _by_candidate(run: AccuracyRun) -> dict[str, dict[Place, ScoredAnswer]]:
    """Candidate → its answers to what all candidates answered; those that answered nothing are left out."""
    every: dict[str, dict[Place, ScoredAnswer]] = {}
    for answer in run.answers:
        every.setdefault(answer.candidate, {})[answer.round, answer.prompt] = answer
    common = set.intersection(*(set(answers) for answers in every.values())) if every else set()
    return {
        name: {place: answers[place] for place in sorted(answers) if place in common} for name, answers in every.items()
    }


def _figures(
    run: AccuracyRun,
    choice: SamplerChoice,
    ours: Mapping[Place, ScoredAnswer],
    theirs: Mapping[Place, ScoredAnswer],
) -> SamplerFigures:
    own, base = _by_seed(ours), _by_seed(theirs)
    names = [each.name for each in run.metrics]
    scores, before = (
        {name: [overall(a.scores[name] for a in of.get(seed, ())) for seed in own] for name in names}
        for of in (own, base)
    )
    apart = [
        [None if a is None or b is None else a - b for a, b in zip(scores[name], before[name], strict=True)]
        for name in names
    ]
    drafting = choice.sampler != VANILLA
    pairs = [(ours[place].tokens, theirs[place].tokens) for place in ours if drafting and place in theirs]
    return SamplerFigures(
        choice=choice,
        answers=len(ours),
        scores=_known(dict(zip(names, map(over_seeds, scores.values()), strict=True))),
        changes=_known(dict(zip(names, map(over_seeds, apart), strict=True))),
        sampling_s=_summed(ours.values()),
        sampling_saved=over_seeds(_saved(own, base, _summed)) if drafting else None,
        decode_saved=over_seeds(_saved(own, base, _decoding)),
        step_s=step_seconds(list(ours.values())),
        acceptance_rate=over_seeds(acceptance_rate(answers) for answers in own.values()) if drafting else None,
        mean_accepted_tokens=over_seeds(mean_accepted_tokens(answers) for answers in own.values()),
        equal=sum(a == b for a, b in pairs),
        compared=len(pairs),
        common_tokens=ratio(sum(common_prefix(a, b) for a, b in pairs), len(pairs)),
        mean_tokens=ratio(sum(len(a) for a, _ in pairs), len(pairs)),
    )


def step_seconds(answers: Sequence[ScoredAnswer]) -> tuple[float, float] | None:
    """Mean and standard deviation of the seconds that a step took to accept and draw; None if nobody told."""
    told = [a for a in answers if a.verdict_s is not None and a.verdict_s2 is not None and a.steps]
    steps = sum(a.steps or 0 for a in told)
    if not steps:
        return None
    mean = sum(a.verdict_s or 0.0 for a in told) / steps
    return mean, math.sqrt(max(0.0, sum(a.verdict_s2 or 0.0 for a in told) / steps - mean * mean))


def _by_seed(answers: Mapping[Place, ScoredAnswer]) -> dict[int, list[ScoredAnswer]]:
    found: dict[int, list[ScoredAnswer]] = {}
    for (seed, _), answer in answers.items():
        found.setdefault(seed, []).append(answer)
    return found


def _summed(answers: Iterable[ScoredAnswer]) -> float | None:
    told = [answer.verdict_s for answer in answers if answer.verdict_s is not None]
    return sum(told) if told else None


def _decoding(answers: Iterable[ScoredAnswer]) -> float | None:
    told = [answer.decode_s for answer in answers if answer.decode_s is not None]
    return sum(told) if told else None


def _saved(
    own: Mapping[int, Sequence[ScoredAnswer]],
    base: Mapping[int, Sequence[ScoredAnswer]],
    seconds: Callable[[Iterable[ScoredAnswer]], float | None],
) -> list[float | None]:
    """Of every seed the share of the baseline's seconds that is saved."""
    found: list[float | None] = []
    for seed in own:
        ours, theirs = seconds(own[seed]), seconds(base.get(seed, ()))
        found.append(None if ours is None or not theirs else 1 - ours / theirs)
    return found


def _known(values: Mapping[str, OverSeeds | None]) -> dict[str, OverSeeds]:
    return {name: value for name, value in values.items() if value is not None}
