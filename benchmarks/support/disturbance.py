"""How much of the cores other programs took while something was measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import psutil

DISTURBED = 0.1
"""From this share of the cores on, others show in what is measured."""

Counters = Callable[[], tuple[Mapping[str, float], float]]
"""Seconds since the machine began, of all cores and by what they were spent on; and those of this process."""


def counters() -> tuple[Mapping[str, float], float]:
    """The system's own; children that have ended count as this process."""
    own = os.times()
    return psutil.cpu_times()._asdict(), own.user + own.system + own.children_user + own.children_system


class Others:
    """Begins to count when it is made."""

    def __init__(self, counters: Counters = counters) -> None:
        self._counters = counters
        self._began = counters()

    def share(self) -> float:
        """Of all cores' time since the beginning, what others than this process had, 0 to 1.

        Time that the machine under a virtual one gave to another (steal) counts; guests' time is within user time.
        """
        (before, own_before), (now, own_now) = self._began, self._counters()
        spent = {name: now[name] - before[name] for name in now if not name.startswith("guest")}
        whole = sum(spent.values())
        if whole <= 0:
            return 0.0
        busy = whole - spent.get("idle", 0.0) - spent.get("iowait", 0.0)
        return min(1.0, max(0.0, (busy - (own_now - own_before)) / whole))
