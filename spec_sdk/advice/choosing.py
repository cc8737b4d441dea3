"""From probes to a choice: which way of running each candidate is predicted to be fastest, and what was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spec_sdk.advice.costs import seconds_of
from spec_sdk.advice.cycles import Cycle, Shape
from spec_sdk.advice.limits import Limit, limits_of
from spec_sdk.advice.predicting import Means, Prediction, Probe, adaptive_seconds, predict, times_as_fast
from spec_sdk.advice.probing import Answers
from spec_sdk.bench.cost_curve import CostCurve

MARGIN = 0.03
"""A pipeline is advised only if it beats plain decoding by so much."""
ADAPTS = 0.03
"""``policy=adaptive`` is predicted only where it beats the best tree by so much: that is simpler."""
OUT_OF_REACH = 0.75
"""A candidate whose speed-up is predicted to be less than so much of the best one's need not be probed further."""


@dataclass(frozen=True)
class Predicted:
    """The best way of running a candidate. ``adaptive``: by ``policy=adaptive``, whose best tree ``shape`` is; else
    with that tree in every cycle, or, where ``shape`` is None, by the pipeline's own policy.

    ``seconds``: per prompt, of all its tokens. ``shapes``: all that were looked at, the fastest first.
    """

    name: str
    shape: Shape | None
    adaptive: bool
    means: Means
    seconds: Mapping[int, float]
    plain_s: Mapping[int, float]
    plain_step_s: float
    shapes: Sequence[Prediction]

    @property
    def speedup(self) -> float:
        return self.speedup_of(self.seconds)

    def speedup_of(self, prompts: Collection[int]) -> float:
        """Over ``prompts`` alone."""
        return times_as_fast(self.plain_s, self.seconds, prompts)

    @property
    def limits(self) -> list[Limit]:
        return limits_of(self.means, self.plain_step_s)


@dataclass(frozen=True)
class Measured:
    """A candidate beside plain decoding, on prompts that both answered; ``predicted``: the speed-up on the same."""

    name: str
    predicted: float
    speedup: float
    tokens_per_second: float
    prompts: int

    @property
    def error(self) -> float:
        """How far off the prediction was, as a share of what was measured."""
        return self.predicted / self.speedup - 1


def predict_each(answers: Answers, plain: str, deepest: Mapping[str, int | None], curve: CostCurve) -> list[Predicted]:
    """Every candidate's best way, the fastest first. ``deepest``: of those that were probed with several trees."""
    found = []
    for name, cycles in answers.cycles.items():
        probe = _probe(cycles, answers, plain, deepest.get(name))
        if name == plain or not probe.cycles:
            continue
        predictions, plain_s = predict(probe, curve), probe.plain_s(curve)
        if not predictions:
            # nothing was ever proposed: it is plain decoding, and what asking takes
            predictions = predict(Probe(probe.cycles, probe.plain, None), curve)
        best = predictions[0]
        seconds, adaptive = best.seconds, False
        if best.shape is not None:
            adapting = adaptive_seconds(predictions, plain_s)
            least = min(sum(seconds.values()) / (1 + ADAPTS), sum(plain_s.values()) / (1 + MARGIN))
            if sum(adapting.values()) < least:
                seconds, adaptive = adapting, True
        step_s = sum(plain_s.values()) / sum(c.tokens for i in plain_s for c in probe.plain[i])
        found.append(Predicted(name, best.shape, adaptive, best.means, seconds, plain_s, step_s, predictions))
    return sorted(found, key=lambda each: -each.speedup)


def out_of_reach(found: Sequence[Predicted]) -> set[str]:
    """Those that need not be probed further."""
    return {each.name for each in found if each.speedup < OUT_OF_REACH * max(1.0, found[0].speedup)}


def measured(answers: Answers, plain: str, predicted: Mapping[str, Predicted], curve: CostCurve) -> list[Measured]:
    """What answering in turns said of those that were ``predicted``, the fastest first."""
    found = []
    for name, each in predicted.items():
        ours, theirs = answers.cycles.get(name, {}), answers.cycles[plain]
        prompts = [i for i in ours if i in theirs and i in each.seconds]
        if prompts:
            own, other = _per_second(ours, prompts, curve), _per_second(theirs, prompts, curve)
            found.append(Measured(name, each.speedup_of(prompts), own / other, own, len(prompts)))
    return sorted(found, key=lambda each: -each.speedup)


def choice(verified: Sequence[Measured], found: Sequence[Predicted]) -> str | None:
    """The name of the pipeline to use, by what was measured, else by what is predicted; None for plain decoding."""
    speeds = [(each.speedup, each.name) for each in verified] or [(each.speedup, each.name) for each in found]
    best = max(speeds, default=(0.0, ""))
    return best[1] if best[0] >= 1 + MARGIN else None


def _probe(cycles: Mapping[int, list[Cycle]], answers: Answers, plain: str, deepest: int | None) -> Probe:
    beside = answers.cycles[plain]
    both = {i: own for i, own in cycles.items() if i in beside}
    return Probe(both, {i: beside[i] for i in both}, deepest, answers.most_tokens)


def _per_second(answers: Mapping[int, Sequence[Cycle]], prompts: Sequence[int], curve: CostCurve) -> float:
    cycles = [cycle for i in prompts for cycle in answers[i]]
    return sum(cycle.tokens for cycle in cycles) / seconds_of(cycles, curve)
