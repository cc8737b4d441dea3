"""The speed-up that a drafter's probe foretells, for every shape of tree and for its policy as it ran.

A cycle with a tree of a shape yields E tokens and takes draft + verify seconds; plain decoding takes a plain step for
every token (Leviathan et al. 2023, arXiv:2211.17192, Theorem 3.8, with measured times in place of a cost coefficient).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spec_sdk.advice.costs import DraftCosts, VerifyCosts
from spec_sdk.advice.cycles import Cycle, Shape
from spec_sdk.advice.recutting import DraftedRanks, recut
from spec_sdk.bench.cost_curve import CostCurve
from spec_sdk.policy.acceptance import WIDTHS

ADAPTIVE_LOSS = 0.05
"""What ``policy=adaptive`` takes longer than the best tree of every prompt (docs/adaptive.md)."""


@dataclass(frozen=True)
class Means:
    """An average cycle. Seconds; ``levels`` and ``nodes`` of its tree. ``pass_s``: the target's pass by the cost curve.

    ``host_s``: what verifying took beyond that: the verdict, committing, launching.
    """

    tokens: float
    levels: float
    nodes: float
    draft_s: float
    pass_s: float
    host_s: float

    @property
    def seconds(self) -> float:
        return self.draft_s + self.pass_s + self.host_s


@dataclass(frozen=True)
class Prediction:
    """``shape``: None for the pipeline's policy as it ran. ``seconds``: per prompt, of all its tokens."""

    shape: Shape | None
    means: Means
    seconds: Mapping[int, float]

    def speedup(self, plain_s: Mapping[int, float], prompts: Iterable[int] | None = None) -> float:
        """Plain decoding's time over its own; ``prompts``: of those only."""
        return times_as_fast(plain_s, self.seconds, self.seconds if prompts is None else prompts)


def times_as_fast(plain_s: Mapping[int, float], seconds: Mapping[int, float], prompts: Iterable[int]) -> float:
    """Plain decoding's time for ``prompts`` over another's, both in seconds by prompt."""
    chosen = list(prompts)
    return sum(plain_s[i] for i in chosen) / sum(seconds[i] for i in chosen)


@dataclass(frozen=True)
class Probe:
    """A drafter's cycles, by prompt, and plain decoding's of the same prompts.

    ``deepest``: the depth that was asked for where shapes are to be told apart; None of a policy that ran as it is.
    ``most_tokens``: of every answer, as it was asked for; None of one without an end.
    """

    cycles: Mapping[int, Sequence[Cycle]]
    plain: Mapping[int, Sequence[Cycle]]
    deepest: int | None
    most_tokens: int | None = None

    def plain_s(self, curve: CostCurve) -> dict[int, float]:
        """Seconds of plain decoding, by prompt, without outliers.

        A pass costs the same in all prompts, as it does in predictions: where the machine was slow during one of them
        both were, and a ratio of one prompt's time to the mean one of others would be none of a speed-up.
        """
        if not self.cycles:
            return {}
        verify = VerifyCosts(curve, [cycle for i in self.cycles for cycle in self.plain[i]])
        return {i: sum(c.draft_s + verify.at(c.nodes, c.prefix) for c in self.plain[i]) for i in self.cycles}


def predict(probe: Probe, curve: CostCurve) -> list[Prediction]:
    """Every shape's prediction, or the policy's, the fastest first. None where the probe says nothing of a prompt."""
    every = [cycle for cycles in probe.cycles.values() for cycle in cycles]
    plain = [cycle for i in probe.cycles for cycle in probe.plain[i]]
    if not every:
        return []
    verify, draft = VerifyCosts(curve, every, plain), DraftCosts(every)
    if probe.deepest is None:
        found = [_as_it_ran(probe, verify)]
    else:
        ranks = DraftedRanks(every, probe.deepest)
        found = [_of_shape(probe, shape, ranks, verify, draft) for shape in shapes_of(every, probe.deepest)]
    return sorted(found, key=lambda prediction: sum(prediction.seconds.values()))


def shapes_of(cycles: Iterable[Cycle], deepest: int) -> list[Shape]:
    """All shapes within the trees that were drafted; of wide ones, the widths that policies choose among."""
    sizes = [cycle.level_sizes for cycle in cycles if cycle.asked >= deepest and cycle.drafted]
    depth = max((len(levels) for levels in sizes), default=0)
    width = max((size for levels in sizes for size in levels), default=0)
    return [Shape(d, w) for d in range(1, depth + 1) for w in WIDTHS if w <= width]


def adaptive_seconds(predictions: Sequence[Prediction], plain_s: Mapping[int, float]) -> dict[int, float]:
    """What ``policy=adaptive`` is taken to need, by prompt: the best shape or plain decoding, and its loss."""
    return {
        i: (1 + ADAPTIVE_LOSS) * min([seconds, *(prediction.seconds[i] for prediction in predictions)])
        for i, seconds in plain_s.items()
    }


def _as_it_ran(probe: Probe, verify: VerifyCosts) -> Prediction:
    every = [cycle for cycles in probe.cycles.values() for cycle in cycles]
    seconds: dict[int, float] = {}
    for i, cycles in probe.cycles.items():
        drafting = sum(cycle.draft_s for cycle in cycles)
        verifying = sum(verify.at(cycle.nodes, cycle.prefix) for cycle in cycles)
        seconds[i] = _plain_tokens(probe, i) * (drafting + verifying) / sum(cycle.tokens for cycle in cycles)
    verify_s = statistics.fmean(verify.at(cycle.nodes, cycle.prefix) for cycle in every)
    pass_s = min(verify_s, statistics.fmean(verify.pass_s(cycle.nodes, cycle.prefix) for cycle in every))
    means = Means(
        statistics.fmean(cycle.tokens for cycle in every),
        statistics.fmean(cycle.drafted for cycle in every),
        statistics.fmean(cycle.nodes for cycle in every),
        statistics.fmean(cycle.draft_s for cycle in every),
        pass_s,
        verify_s - pass_s,
    )
    return Prediction(None, means, seconds)


def _of_shape(probe: Probe, shape: Shape, ranks: DraftedRanks, verify: VerifyCosts, draft: DraftCosts) -> Prediction:
    assert probe.deepest is not None
    seconds: dict[int, float] = {}
    rows: list[tuple[float, ...]] = []
    for i, cycles in probe.cycles.items():
        # where sampling made answers differ, so do their lengths
        of_plain = _plain_tokens(probe, i) / sum(cycle.tokens for cycle in cycles)
        seconds[i] = 0.0
        for piece in recut(cycles, shape, probe.deepest, ranks, probe.most_tokens):
            draft_s = draft.at(piece.levels, piece.nodes) if piece.asked else 0.0
            verify_s = verify.at(piece.nodes, piece.prefix)
            seconds[i] += piece.share * (draft_s + verify_s) * of_plain
            pass_s = min(verify_s, verify.pass_s(piece.nodes, piece.prefix))
            row = (1.0, piece.tokens, piece.levels, piece.nodes, draft_s, pass_s, verify_s - pass_s)
            rows.append(tuple(piece.share * value for value in row))
    count, *sums = (sum(column) for column in zip(*rows, strict=True))
    return Prediction(shape, Means(*(total / count for total in sums)), seconds)


def _plain_tokens(probe: Probe, prompt: int) -> int:
    return sum(cycle.tokens for cycle in probe.plain[prompt])
