"""What drafting and verifying a tree costs here: a cost curve, and what cycles took beside it."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import torch

from spec_sdk.advice.cycles import Cycle
from spec_sdk.bench.cost_curve import CostCurve

OWN_SAMPLES = 4
"""What occurred so many times needs no times of others: a tree that was drafted, or a pass over one node."""


class VerifyCosts:
    """Seconds of scoring a tree, deciding and committing: the curve, times what cycles took of it.

    The ratio is known at the sizes that occurred, those between two powers of two together, and lies on lines between
    them. Plain steps stand apart, since a tree of two nodes already brings all the work of a tree. ``cycles``: of one
    pipeline. ``plain``: of plain decoding, which is asked of passes over one node if those of ``cycles`` are few.
    Raises ValueError without any.
    """

    def __init__(self, curve: CostCurve, cycles: Iterable[Cycle], plain: Iterable[Cycle] = ()) -> None:
        self._curve, cycles = curve, list(cycles)
        if sum(cycle.nodes == 1 for cycle in cycles) < OWN_SAMPLES:
            cycles += plain
        groups: dict[int, list[tuple[int, float]]] = {}
        for cycle in cycles:
            ratio = cycle.verify_s / curve.at(cycle.nodes, cycle.prefix)
            groups.setdefault(cycle.nodes.bit_length(), []).append((cycle.nodes, ratio))
        if not groups:
            raise ValueError("verify costs come from one cycle at least")
        points = [
            (statistics.fmean(nodes for nodes, _ in groups[key]), midmean([ratio for _, ratio in groups[key]]))
            for key in sorted(groups)
        ]
        self._trees = [point for point in points if point[0] > 1] or points
        self._plain_ratio = points[0][1]

    def at(self, nodes: int, prefix: int) -> float:
        """Seconds with a tree of ``nodes`` behind ``prefix`` tokens."""
        return self.pass_s(nodes, prefix) * self._ratio(nodes)

    def pass_s(self, nodes: int, prefix: int) -> float:
        """Those of the pass alone, as the curve has it."""
        return self._curve.at(nodes, prefix)

    def _ratio(self, nodes: int) -> float:
        if nodes == 1:
            return self._plain_ratio
        points = self._trees
        above = bisect_right([size for size, _ in points], nodes)
        if above in (0, len(points)):
            return points[min(above, len(points) - 1)][1]
        (x, y), (x2, y2) = points[above - 1 : above + 1]
        return y + (y2 - y) * (nodes - x) / (x2 - x)


class DraftCosts:
    """Seconds of drafting: a fixed part, one for each level, one for each node that widens a level; none negative.

    A tree that was drafted often enough takes what it took. ``silent_s``: of a call that proposed nothing.
    """

    def __init__(self, cycles: Iterable[Cycle]) -> None:
        asked = [cycle for cycle in cycles if cycle.asked > 0]
        self.silent_s = midmean([cycle.draft_s for cycle in asked if not cycle.drafted])
        groups: dict[tuple[int, int], list[float]] = {}
        for cycle in asked:
            if cycle.drafted:
                groups.setdefault((cycle.drafted, cycle.nodes), []).append(cycle.draft_s)
        self._own = {size: midmean(times) for size, times in groups.items() if len(times) >= OWN_SAMPLES}
        rows = [(1.0, float(levels), float(nodes - 1 - levels)) for levels, nodes in groups]
        seconds = [midmean(times) for times in groups.values()]
        self.fixed_s, self.level_s, self.node_s = _least_squares(rows, seconds, [len(g) for g in groups.values()])

    def at(self, levels: int, nodes: int) -> float:
        """Seconds of a tree of so many levels and, the root included, nodes."""
        if not levels:
            return self.silent_s
        own = self._own.get((levels, nodes))
        return own if own is not None else self._fitted(levels, nodes)

    def _fitted(self, levels: int, nodes: int) -> float:
        return self.fixed_s + levels * self.level_s + (nodes - 1 - levels) * self.node_s


def midmean(samples: Sequence[float]) -> float:
    """The mean of the middle half, 0 of none: what interrupted a single pass is no property of a stage."""
    cut = len(samples) // 4
    return statistics.fmean(sorted(samples)[cut : len(samples) - cut]) if samples else 0.0


def seconds_of(cycles: Sequence[Cycle], curve: CostCurve) -> float:
    """What one pipeline's cycles took, without what interrupted passes over so many nodes now and then."""
    verify = VerifyCosts(curve, cycles)
    return sum(cycle.draft_s + verify.at(cycle.nodes, cycle.prefix) for cycle in cycles)


def _least_squares(
    rows: Sequence[tuple[float, float, float]], seconds: Sequence[float], counts: Sequence[int]
) -> tuple[float, float, float]:
    """The weighted least squares of ``rows`` · x = ``seconds`` with no x below 0; of equal ones that with fewest terms.

    Every set of terms is tried: there are three.
    """
    if not rows:
        return 0.0, 0.0, 0.0
    weight = torch.tensor(counts, dtype=torch.float64).sqrt()
    every = torch.tensor(rows, dtype=torch.float64) * weight[:, None]
    wanted = torch.tensor(seconds, dtype=torch.float64) * weight
    best, least = (0.0, 0.0, 0.0), float(wanted @ wanted)
    for size in (1, 2, 3):
        for terms in itertools.combinations(range(3), size):
            columns = every[:, list(terms)]
            if int(torch.linalg.matrix_rank(columns)) < size:
                continue
            x = torch.linalg.lstsq(columns, wanted).solution
            left = float(((columns @ x - wanted) ** 2).sum())
            # a term more must explain something
            if bool((x >= 0).all()) and left < 0.99 * least - 1e-18:
                found = dict(zip(terms, x.tolist(), strict=True))
                best, least = (found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0)), left
    return best
