"""Cases of a benchmark in which rivals do the same thing: their rows of a table, and whether one is always faster.

A case is plain data with ``rivals``: name → ``seconds`` and ``peak_bytes``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spec_sdk.bench.aims import Aim, aim

Case = Mapping[str, Any]
COLUMNS = {"ratio": 7, "rival": -28, "us": 9, "MiB": 8, "step": -1}


def time_ratio(case: Case, name: str, beside: str) -> float:
    """The time of ``name`` over that of ``beside``."""
    return float(case["rivals"][name]["seconds"] / case["rivals"][beside]["seconds"])


def rival_rows(case: Case, base: str, label: str) -> list[list[str]]:
    """The cells of COLUMNS for every rival, first how many times as fast as ``base`` it is, last ``label``."""
    return [
        [
            f"{time_ratio(case, base, name):.2f}",
            name,
            f"{1e6 * one['seconds']:.0f}",
            f"{one['peak_bytes'] / 2**20:.2f}",
            label,
        ]
        for name, one in case["rivals"].items()
    ]


def faster_aim(name: str, beside: str, cases: Sequence[Case], label: Callable[[Case], str], where: str) -> Aim:
    """Whether ``name`` is faster than ``beside`` in every case, on the device ``where``; worst in the case ``label``.

    Raises ValueError where there is no case.
    """
    ratios = [time_ratio(case, name, beside) for case in cases]
    worst, below = max(ratios), sum(ratio < 1 for ratio in ratios)
    figure = f"faster in {below} of {len(ratios)}, median {statistics.median(ratios):.2f} of its time, "
    figure += f"worst {worst:.2f} at {label(cases[ratios.index(worst)])}"
    return aim(f"{where}: {name} is faster than {beside}", worst < 1, figure)
