"""Measuring a cost curve: a few passes of every size, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from spec_sdk.bench.cost_curve import CostCurve
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.executor import Executor, PassPlan
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows

NODES = (1, 8, 32, 2, 16, 4, 64)
"""Sizes of pass, those first that tell most: whoever runs out of time has seen the ends and the middle."""
MOST_PASSES = 6
"""Passes of one size at most: the least of their times counts."""
ALLOWED = 3
"""Time for so many passes must be left for a size to be begun: two, of which the first may take longer."""

SecondsOfPass = Callable[[int, int], float]
"""Runs one pass of so many nodes behind so long a context, and says what it took."""


def contexts_of(longest: int) -> tuple[int, ...]:
    """The context lengths to measure a model at whose own context is ``longest`` tokens."""
    return tuple(sorted({max(1, min(64, longest // 4)), max(1, min(1024, longest // 2))}))


def measure_curve(
    seconds_of: SecondsOfPass,
    contexts: Sequence[int],
    budget_s: float,
    now: Callable[[], float] = time.perf_counter,
) -> CostCurve | None:
    """The curve, within about ``budget_s`` seconds; None where passes are too slow for two sizes of them.

    Every point gets an equal share of the time that is left. The first pass of a size may compile or allocate
    something, so each is made twice at least. A size is left out if ``ALLOWED`` passes of it, at the rate of those
    measured before, would take longer than all that is left.
    """
    began, points = now(), dict[tuple[int, int], float]()
    todo = [(context, size) for context in contexts for size in NODES]
    for i, (context, size) in enumerate(todo):
        left = budget_s - (now() - began)
        if left <= 0 or ALLOWED * _at_most(points, size) > left:
            continue
        share, start, times = left / (len(todo) - i), now(), list[float]()
        while len(times) < MOST_PASSES:
            spent = now() - start
            if times and spent + min(times) > (share if len(times) >= 2 else left):
                break
            times.append(seconds_of(size, context))
        if len(times) >= 2:
            points[context, size] = min(times)
    whole = {context for context in contexts if sum(c == context for c, _ in points) >= 2}
    kept = {point: seconds for point, seconds in points.items() if point[0] in whole}
    return CostCurve(kept) if kept else None


def _at_most(points: dict[tuple[int, int], float], size: int) -> float:
    """What a pass of ``size`` nodes takes at most, as far as it is known: in proportion to a smaller one; else 0."""
    bounds = [seconds * max(1.0, size / nodes) for (_, nodes), seconds in points.items()]
    return min(bounds, default=0.0)


class PassTimer:
    """Times passes of one model through its executor, in a cache of its own: whichever backend it is of.

    ``kind``: ``tree``, as the target scores a tree, or ``growing``, as a draft model is fed a level. A context is what
    an empty cache holds: time does not depend on values. ``clock``: the backend's.
    """

    def __init__(
        self,
        executor: Executor,
        clock: StepClock,
        kind: Literal["tree", "growing"],
        runner: BlockRunner | None = None,
    ) -> None:
        self.contexts = contexts_of(executor.config.max_context)
        self._executor = executor
        self._clock = clock
        self._kind = kind
        self._plan = PassPlan(runner or SequentialRunner())
        self._cache = executor.new_cache()
        # once, so that no pass is timed that comes after a move
        self._cache.reserve(1, max(self.contexts) + max(NODES) + 1)

    def __call__(self, nodes: int, context: int) -> float:
        """Seconds of one pass of ``nodes`` siblings behind ``context`` committed tokens."""
        executor, vocabulary = self._executor, self._executor.config.vocab_size
        tokens = [1 + 7919 * i % (vocabulary - 1) for i in range(nodes + 1)]
        if self._kind == "tree":
            tokens = tokens[:nodes]
            rows = RequestRows.tree(0, context, tokens, [0] + [1] * (nodes - 1), [nodes, *range(2, nodes + 1)])
        else:
            ends = [nodes + 1, *range(2, nodes + 2)]
            rows = RequestRows.growing(0, context, tokens, [0] + [1] * nodes, range(nodes + 1), ends, nodes)
        self._cache.roll_back(0, 0)
        began = self._clock.mark()
        inputs = PassInputs.of(
            self._kind,
            [rows],
            executor.device,
            rows=executor.rows_of(nodes),
            slots=executor.slots_of(len(rows.key_end)),
            features_BNM=self._features(executor.rows_of(nodes)),
        )
        executor.forward(inputs, self._cache, self._plan)
        return self._clock.seconds(began, self._clock.mark())

    def _features(self, rows: int) -> torch.Tensor | None:
        executor = self._executor
        if not executor.feature_width:
            return None
        return torch.zeros(1, rows, executor.feature_width, dtype=executor.dtype, device=executor.device)
