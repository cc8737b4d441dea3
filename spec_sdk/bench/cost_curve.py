"""What a pass costs by its number of nodes and the context behind it: measured points, and what lies between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a pass of one model, piecewise linear in the number of nodes and in the context.

    ``points``: (context, nodes) → seconds, at two numbers of nodes or more for every context. They are made monotone: a
    pass can be padded, so it costs no more than one of more nodes or of a longer context did. Raises ValueError for
    points that are no curve.
    """

    points: Mapping[tuple[int, int], float]
    contexts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _lines: tuple[_Line, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        contexts = sorted({context for context, _ in self.points})
        if not contexts:
            raise ValueError("a cost curve has points at one context at least")
        lines: list[_Line] = []
        for context in reversed(contexts):
            nodes = sorted(n for c, n in self.points if c == context)
            seconds = [self.points[context, n] for n in nodes]
            if len(nodes) < 2 or nodes[0] < 1 or context < 0:
                raise ValueError(f"context {context}: a cost curve has two numbers of nodes or more: {nodes}")
            if not all(math.isfinite(s) and s > 0 for s in seconds):
                raise ValueError(f"context {context}: seconds must be above 0 and finite: {seconds}")
            for i in reversed(range(len(nodes))):
                bounds = seconds[i : i + 2]
                if lines and lines[-1].nodes[0] <= nodes[i] <= lines[-1].nodes[-1]:
                    bounds.append(lines[-1].at(nodes[i]))
                seconds[i] = min(bounds)
            lines.append(_Line(tuple(nodes), tuple(seconds)))
        object.__setattr__(self, "contexts", tuple(contexts))
        object.__setattr__(self, "_lines", tuple(reversed(lines)))

    def at(self, nodes: float, context: int) -> float:
        """Seconds of a pass of ``nodes`` (>= 1, a mean need not be whole) behind ``context`` committed tokens.

        Beyond the last point a line goes on as it did before; before the first context it stays as it is.
        """
        contexts, lines = self.contexts, self._lines
        above = bisect_right(contexts, context)
        if len(contexts) == 1 or above == 0:
            return lines[0].at(nodes)
        if above == len(contexts):
            # what one node more takes behind a longer context is not known: all go on as a pass of one node did
            a_token = (lines[-1].at(1) - lines[-2].at(1)) / (contexts[-1] - contexts[-2])
            return max(line.at(nodes) for line in lines) + max(0.0, a_token) * (context - contexts[-1])
        # a line may lack the larger sizes, and then goes on below those before it
        low = max(line.at(nodes) for line in lines[:above])
        high = max(low, lines[above].at(nodes))
        return low + (high - low) * (context - contexts[above - 1]) / (contexts[above] - contexts[above - 1])

    def as_json(self) -> list[list[float]]:
        """The measured points: [context, nodes, seconds] each."""
        return [[context, nodes, seconds] for (context, nodes), seconds in sorted(self.points.items())]

    @staticmethod
    def from_json(value: Any) -> CostCurve:
        """The curve of :meth:`as_json`. Raises ValueError for anything else."""
        points: dict[tuple[int, int], float] = {}
        for row in value if isinstance(value, list) else [None]:
            if not (isinstance(row, list) and len(row) == 3 and all(type(x) in (int, float) for x in row)):
                raise ValueError(f"no point of a cost curve: {row!r}")
            points[int(row[0]), int(row[1])] = float(row[2])
        return CostCurve(points)


@dataclass(frozen=True)
class PassCosts:
    """What passes of a run's models cost. ``draft``: None without a draft model. ``measured_s``: to measure it."""

    target: CostCurve
    draft: CostCurve | None
    measured_s: float


@dataclass(frozen=True)
class _Line:
    """Seconds by nodes, at one context."""

    nodes: Sequence[int]
    seconds: Sequence[float]

    def at(self, nodes: float) -> float:
        if nodes <= self.nodes[0]:
            return self.seconds[0]
        above = min(bisect_right(self.nodes, nodes), len(self.nodes) - 1)
        x, y = self.nodes[above - 1], self.seconds[above - 1]
        return y + (self.seconds[above] - y) * (nodes - x) / (self.nodes[above] - x)
