"""The CPU cores that this process may run on."""

from __future__ import annotations

import os


def usable_cores() -> tuple[int, ...]:
    """Their numbers, ascending; all of the machine's where the system keeps no process to some of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(affinity(0)) if affinity is not None else range(os.cpu_count() or 1))
