"""Compiles many variants of a kernel in several processes, so that those that time them find them compiled."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

MOST_PROCESSES = 14


def compile_beside(compile_cases: Callable[[Sequence[Any]], None], cases: Sequence[Any]) -> None:
    """In several processes, each its share of the cases."""
    processes = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    shares = [cases[i::processes] for i in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(compile_cases, shares)
