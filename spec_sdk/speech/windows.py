"""Where a long sound is cut into windows that the encoder takes.

Legend: T samples, C candidate places of a cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from spec_sdk.speech.log_mel import HOP

CUTS = {
    "pause": "a window ends where its last fifth is quietest, so that few words are cut",
    "length": "every window is as long as the encoder takes, 30 s",
}
SEARCHED = 5
"""A pause is searched in one part of so many of a window: its last."""
QUIET = 10
"""Frames (100 ms) over which loudness is averaged."""


def windows_of(samples_T: torch.Tensor, longest: int, cut: str) -> Sequence[tuple[int, int]]:
    """First sample and end of every window, each at most ``longest`` samples, one behind the other without a gap.

    ``cut``: one of :data:`CUTS`. A sound that fits one window is one window.
    """
    windows, begin = [], 0
    while len(samples_T) - begin > longest:
        end = begin + longest
        if cut == "pause":
            end = _quietest(samples_T, end - longest // SEARCHED, end)
        windows.append((begin, end))
        begin = end
    return [*windows, (begin, len(samples_T))]


def _quietest(samples_T: torch.Tensor, first: int, end: int) -> int:
    """The middle of the quietest :data:`QUIET` frames in a part of the sound, the last of several that are alike."""
    part = samples_T[first:end].double().square()
    loudness_C = F.avg_pool1d(part[None, None], QUIET * HOP, stride=HOP)[0, 0] if len(part) >= QUIET * HOP else part[:0]
    if not len(loudness_C):
        return end
    place = len(loudness_C) - 1 - int(loudness_C.flip(0).argmin())
    return first + place * HOP + QUIET * HOP // 2
