"""ALSpec's latency model (ICML 2025, Appendix F): the time of one token from the times of its parts.

All times are microseconds. FD(K) is flash decode at a context of K tokens; SFD_S and SFD_R are speculative flash decode
on the sender, which attends in full, predicts on the way and verifies, and on the receiver, which waits for the
prediction. Both start together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Rounding = Literal["none", "paper"]
NEGLIGIBLE = 1e-9
"""Relative differences below this are rounding errors of our own arithmetic."""


@dataclass(frozen=True)
class StepTimes:
    """One decoding step of a group of devices at one context length.

    ``fixed``: embedding and head. ``per_layer``: a layer without its attention kernel. ``receiver``: SFD_R, with the
    time that the prediction takes to the other group.
    """

    fixed: float
    per_layer: float
    flash_decode: float
    sender: float
    receiver: float

    @property
    def hit_layer(self) -> float:
        """A layer whose prediction is accepted: the other group's work hides the rest of attention, or the reverse."""
        return self.receiver + max(self.sender - self.receiver, self.per_layer)

    @property
    def missed_layer(self) -> float:
        """A layer whose prediction is rejected."""
        return self.per_layer + self.sender


def tensor_parallel_us(times: StepTimes, layers: int) -> float:
    """A token without speculation: fixed + L·(per_layer + FD(K))."""
    return times.fixed + layers * (times.per_layer + times.flash_decode)


def speculative_us(times: StepTimes, layers: int, hit_rate: float, rounding: Rounding = "none") -> float:
    """A token on two such groups: fixed + hits·(SFD_R + max(SFD_S − SFD_R, per_layer)) + misses·(per_layer + SFD_S).

    ``rounding`` "paper" takes ⌊L·r⌋ hits, as the formula is printed; "none" L·r, the mean over many tokens, which is
    what the paper's Table 3 was computed with.
    """
    hits = float(whole_hits(layers, hit_rate)) if rounding == "paper" else layers * hit_rate
    return times.fixed + hits * times.hit_layer + (layers - hits) * times.missed_layer


def whole_hits(layers: int, hit_rate: float) -> int:
    """⌊L·r⌋. The misses ⌈L·(1−r)⌉ are the other layers."""
    return math.floor(layers * hit_rate + layers * NEGLIGIBLE)


def break_even(times: StepTimes, layers: int, other_us: float, rounding: Rounding = "none") -> float:
    """The hit rate above which speculation is faster than a token of ``other_us``.

    -inf if it is faster at every hit rate, inf if there is none above which it is (hits may also gain nothing). With
    ``rounding`` "paper" it is the lowest rate, a whole number of layers, at which it *is* faster.
    """
    excess = speculative_us(times, layers, 0.0) - other_us
    gain = layers * (times.missed_layer - times.hit_layer)
    if abs(excess) <= NEGLIGIBLE * other_us:
        excess = 0.0
    if excess < 0 and excess < gain:
        return -math.inf
    if gain <= NEGLIGIBLE * other_us or excess >= gain * (1 - NEGLIGIBLE):
        return math.inf
    if rounding == "paper":
        return (whole_hits(layers, excess / gain) + 1) / layers
    return excess / gain
