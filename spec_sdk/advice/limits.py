"""What keeps a pipeline from being faster, in words and in what the speed-up would be without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spec_sdk.advice.predicting import Means

FEW_TOKENS = 1.3
"""Tokens per cycle below which nothing but better drafts could help much."""
HARDLY_ANY = 0.05
"""Levels drafted per cycle below which nothing is said of their acceptance."""
SMALL = 1.1
"""A cost is told of if without it the speed-up would be so many times as large."""

Kind = Literal["acceptance", "undrafted", "verification", "drafting", "host"]


@dataclass(frozen=True)
class Limit:
    """``without``: the speed-up if it were gone: all drafts accepted, verification at a plain step's price, drafting or
    the host's work free.
    """

    kind: Kind
    without: float
    words: str


def limits_of(means: Means, plain_s: float) -> list[Limit]:
    """What limits a pipeline with cycles like ``means``, the largest first; ``plain_s``: a plain step's seconds.

    Acceptance, or that hardly anything was drafted, comes first where cycles make few tokens, and last otherwise, since
    no draft is always right.
    """
    speedup = means.tokens * plain_s / means.seconds
    plain_pass_s = min(means.pass_s, plain_s)
    times = means.pass_s / plain_s
    costs = [
        Limit(
            "verification",
            _without(means, plain_s, means.pass_s - plain_pass_s),
            f"verification cost: a pass over {means.nodes:.1f} nodes takes as long as {times:.1f} plain steps",
        ),
        Limit(
            "drafting",
            _without(means, plain_s, means.draft_s),
            f"draft cost: drafting takes {1000 * means.draft_s:.1f} ms a cycle, "
            f"{means.draft_s / plain_s:.2f} plain steps",
        ),
        Limit(
            "host",
            _without(means, plain_s, means.host_s),
            f"host time and launch overhead: {1000 * means.host_s:.1f} ms a cycle beside the target's pass",
        ),
    ]
    told = [limit for limit in costs if limit.without >= SMALL * speedup]
    told.sort(key=lambda limit: -limit.without)
    per_cycle = f"{means.tokens:.2f} tokens a cycle of {1 + means.levels:.1f} possible ones"
    low = means.tokens < FEW_TOKENS
    without = (1 + means.levels) * plain_s / means.seconds
    if means.levels < HARDLY_ANY:
        acceptance = Limit("undrafted", without, "hardly anything was drafted")
    else:
        acceptance = Limit("acceptance", without, f"low acceptance: {per_cycle}" if low else f"acceptance: {per_cycle}")
    return [acceptance, *told] if low else [*told, acceptance]


def _without(means: Means, plain_s: float, saved_s: float) -> float:
    return means.tokens * plain_s / (means.seconds - saved_s)
