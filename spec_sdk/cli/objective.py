"""What a sweep optimises: the metrics of its jobs, a sweeper's directions, and the best of the jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from spec_sdk.cli.outcomes import Outcome, read_metrics
from spec_sdk.config.nested import leaves
from spec_sdk.counted import counted
from spec_sdk.errors import UserError, did_you_mean

DIRECTIONS = ("maximize", "minimize")
SPEEDUP = "speedup"
ATTENTION = ("attention.hit_rate", "attention.mean_error", "attention.max_error")


def known_metrics() -> list[str]:
    """The metrics that every run of ``task=generate`` has, and those that some have."""
    from spec_sdk.metrics import summarise

    return [*(name for name, _ in leaves(summarise([])) if name != "attention"), *ATTENTION, SPEEDUP]


def values_of(directory: Path, names: Sequence[str]) -> dict[str, float]:
    """The values that the run in ``directory`` has of the metrics ``names``. Raises UserError for one it has not."""
    metrics = read_metrics(directory)
    if metrics is None:
        raise UserError("sweep.metric: this task writes no metrics.json, which has the metrics")
    found = dict(leaves(metrics.get("summary") or {}))
    if SPEEDUP in (metrics.get("comparison") or {}):
        found[SPEEDUP] = metrics["comparison"][SPEEDUP]
    numbers = {n: v for n, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}
    for name in names:
        if name not in numbers:
            raise UserError(f"sweep.metric: this job has no {name}{_hint(name, numbers)}")
    return {name: float(numbers[name]) for name in names}


def _hint(name: str, numbers: Iterable[str]) -> str:
    """What to do about a metric that a job has not."""
    if name == SPEEDUP:
        return "; compare=true makes one"
    return ", which speculation on attention has" if name in ATTENTION else did_you_mean(name, numbers)


def directions_of(sweeper: DictConfig, names: Sequence[str]) -> tuple[str, ...]:
    """The sweeper's direction for each of the metrics; none if it has no such option. Raises UserError."""
    given = sweeper.get("direction")
    if given is None:
        return ()
    listed = list(given) if isinstance(given, ListConfig) else [given]
    directions = tuple(d.name if isinstance(d, Enum) else str(d) for d in listed)
    for direction in directions:
        if direction not in DIRECTIONS:
            raise UserError(f"hydra.sweeper.direction: unknown {direction!r}{did_you_mean(direction, DIRECTIONS)}")
    if len(directions) != len(names):
        raise UserError(
            f"hydra.sweeper.direction: {len(directions)} for {counted(len(names), 'metric')} "
            "(sweep.metric); give one for each"
        )
    return directions


def best_of(outcomes: Sequence[Outcome], directions: Sequence[str]) -> list[Outcome]:
    """The jobs that no other surpasses, by being better in a metric and worse in none. Of one metric: the best."""

    def scores(outcome: Outcome) -> list[float]:
        signs = [1 if direction == "maximize" else -1 for direction in directions]
        return [sign * value for sign, value in zip(signs, (outcome.metric or {}).values(), strict=True)]

    def surpasses(one: Sequence[float], other: Sequence[float]) -> bool:
        return one != other and all(a >= b for a, b in zip(one, other, strict=True))

    rated = [(outcome, scores(outcome)) for outcome in outcomes if outcome.metric and directions]
    return [outcome for outcome, own in rated if not any(surpasses(others, own) for _, others in rated)]
