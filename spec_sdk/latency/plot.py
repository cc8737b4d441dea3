"""Estimates as a drawing (SVG)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from spec_sdk.counted import counted
from spec_sdk.latency.estimate import Estimate
from spec_sdk.latency.table import show_context
from spec_sdk.svg_plot import new_figure, svg_of


def plot_svg(estimates: Sequence[Estimate], title: str) -> str:
    """One row per number of devices: tokens per second by context, and the hit rate above which ALSpec pays.

    Needs matplotlib.
    """
    rows = [(devices, list(group)) for devices, group in groupby(estimates, key=lambda e: e.devices)]
    figure = new_figure(11, 3.6 * len(rows))
    figure.suptitle(title)
    axes = figure.subplots(len(rows), 2, squeeze=False)
    for (devices, row), (speeds, thresholds) in zip(rows, axes, strict=True):
        _plot_speeds(speeds, devices, row)
        _plot_thresholds(thresholds, devices, row)
        for axis in (speeds, thresholds):
            axis.set_xlabel("context (tokens)")
            axis.set_xticks([e.context for e in row], [show_context(e.context) for e in row])
            axis.grid(alpha=0.3)
    return svg_of(figure)


def _plot_speeds(axis: Any, devices: int, row: Sequence[Estimate]) -> None:
    lines: dict[str, list[float | None]] = {
        f"TP {devices // 2}": [e.group_speed for e in row],
        f"TP {devices}": [e.all_speed for e in row],
    }
    for rate in row[0].alspec:
        lines[f"ALSpec @{100 * rate:g}% + TP {devices // 2}"] = [e.alspec[rate] for e in row]
    contexts = [e.context for e in row]
    for i, (label, values) in enumerate(lines.items()):
        if any(values):
            heights = [math.nan if value is None else value for value in values]
            axis.plot(contexts, heights, marker="o", linestyle="--" if i < 2 else "-", label=label)
    axis.set_ylim(0, 1.1 * max(value for values in lines.values() for value in values if value is not None))
    axis.set_ylabel("tokens per second")
    axis.set_title(counted(devices, "device"))
    axis.legend()


def _plot_thresholds(axis: Any, devices: int, row: Sequence[Estimate]) -> None:
    contexts = [e.context for e in row]
    lines = {devices // 2: [e.break_even_group for e in row], devices: [e.break_even_all for e in row]}
    for degree, rates in lines.items():
        if all(rate is None for rate in rates):
            continue
        # what is unknown and "never" are gaps in the line; "always" lies on its bottom
        heights = [math.nan if rate is None or rate == math.inf else 100 * max(rate, 0.0) for rate in rates]
        never = ": never" if all(rate == math.inf for rate in rates) else ""
        axis.plot(contexts, heights, marker="o", label=f"than TP {degree}{never}")
    axis.set_ylim(-3, 103)
    axis.set_ylabel("hit rate (%)")
    axis.set_title("above the line ALSpec is faster")
    if axis.get_lines():
        axis.legend()
