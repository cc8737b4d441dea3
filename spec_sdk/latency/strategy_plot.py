"""Ways to use a number of devices as a drawing (SVG): a token's time by context with its crossovers, and throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spec_sdk.latency.strategies import Comparison, Strategy
from spec_sdk.latency.table import show_context
from spec_sdk.svg_plot import new_figure, svg_of

STYLES = {"ALSpec": "-", "ALSpec, pipelined": "-.", "attention sink": ":"}
"""Of a line; of all others dashes."""


def strategies_svg(comparisons: Sequence[Comparison], title: str) -> str:
    """A row per number of devices: milliseconds per token, circles where ALSpec and a rival cross; tokens per second of
    all requests together. Needs matplotlib.
    """
    figure = new_figure(13, 4.6 * len(comparisons))
    figure.suptitle(title)
    axes = figure.subplots(len(comparisons), 2, squeeze=False)
    for comparison, (latency, throughput) in zip(comparisons, axes, strict=True):
        for place, strategy in enumerate(comparison.strategies):
            _line(latency, comparison, strategy, place, lambda us, _: us / 1000)
            _line(throughput, comparison, strategy, place, lambda us, streams: streams * 1e6 / us)
        _mark_crossovers(latency, comparison)
        latency.set_ylabel("milliseconds per token")
        throughput.set_ylabel("tokens per second, all requests")
        throughput.legend(fontsize="x-small")
        for axis in (latency, throughput):
            axis.set_title(f"{comparison.devices} devices")
            axis.set_xlabel("context (tokens)")
            axis.set_xticks(list(comparison.contexts), [show_context(context) for context in comparison.contexts])
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
    return svg_of(figure)


def _line(axis: Any, comparison: Comparison, strategy: Strategy, place: int, value: Any) -> None:
    times = [strategy.token_us(context) for context in comparison.contexts]
    heights = [math.nan if us is None else value(us, strategy.streams) for us in times]
    style = STYLES.get(strategy.kind, "--")
    axis.plot(comparison.contexts, heights, style, marker=".", color=f"C{place % 10}", label=strategy.label)


def _mark_crossovers(axis: Any, comparison: Comparison) -> None:
    times = {strategy.label: strategy.token_us for strategy in comparison.strategies}
    for crossover in comparison.crossovers:
        us = times[crossover.faster](crossover.context)
        if us is not None:
            axis.plot([crossover.context], [us / 1000], "o", markersize=9, fillstyle="none", color="black")
