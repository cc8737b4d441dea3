"""How many tokens to draft at a time where a program takes one number: from measured acceptance and weights read.

With a_k the acceptance rate of a chain's token k, those before it accepted, a pass of the target makes
MAT(d) = 1 + Σ_{j ≤ d} Π_{k ≤ j} a_k tokens (Leviathan et al. 2023, arXiv:2211.17192, §3.1, where all a_k are one α).
Decoding one request reads weights and little else, so a drafted token is taken to cost c = draft's / target's
parameters of a target pass, and tokens per time are MAT(d) / (1 + c·d). A head that drafts all in one pass costs c
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

LONGEST = 16


@dataclass(frozen=True)
class RecommendedDepth:
    """``rates``: a_1, a_2 …; empty where nothing was measured, and ``depth`` is what the files say or their method's
    own. ``origin``: where the rates come from, in words; ``cost``: c.
    """

    depth: int
    rates: tuple[float, ...]
    origin: str
    cost: float

    @property
    def mean_accepted_tokens(self) -> list[float]:
        """MAT(1), MAT(2) …"""
        return mean_accepted_tokens(self.rates)


def mean_accepted_tokens(rates: Sequence[float]) -> list[float]:
    """MAT(1), MAT(2) … of these acceptance rates by place in the chain."""
    return [1 + total for total in accumulate(accumulate(rates, mul))]


def best_depth(rates: Sequence[float], cost: float, at_once: bool = False) -> int:
    """The d ≥ 1 of most tokens per time, the smallest of equals. ``at_once``: all drafts come of one pass.

    Raises ValueError without rates.
    """
    speeds = [
        mat / (1 + cost * (1 if at_once else depth))
        for depth, mat in enumerate(mean_accepted_tokens(rates[:LONGEST]), start=1)
    ]
    return 1 + speeds.index(max(speeds))


def recommended(
    rates: Sequence[float], origin: str, cost: float, *, at_once: bool, most: int | None, otherwise: int
) -> RecommendedDepth:
    """The depth to serve with. ``most``: the tokens that the draft can guess at a time, None for any number;
    ``otherwise``: the depth where nothing was measured.
    """
    rates = tuple(rates if most is None else rates[:most])
    if rates:
        return RecommendedDepth(best_depth(rates, cost, at_once), rates, origin, cost)
    return RecommendedDepth(otherwise if most is None else min(otherwise, most), (), origin, cost)
