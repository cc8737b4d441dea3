"""The evaluations of a training as a drawing (SVG)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_sdk.svg_plot import new_figure, svg_of


def curve_svg(curve: Sequence[Mapping[str, Any]], depth: int, title: str) -> str:
    """Loss, acceptance rate and mean accepted tokens on held-out text, by step. Needs matplotlib."""
    figure = new_figure(12, 3.6)
    figure.suptitle(title)
    losses, rates, lengths = figure.subplots(1, 3)
    _plot(losses, curve, {"loss": "held out"}, "divergence from the target (nats)")
    _plot(rates, curve, {"acceptance_rate": "greedy"}, "share of tokens that are the first choice")
    kinds = {"mean_accepted_tokens": "greedy", "mean_accepted_tokens_sampled": "temperature 1"}
    _plot(lengths, curve, kinds, f"tokens per target pass (chains of {depth})")
    return svg_of(figure)


def _plot(axis: Any, curve: Sequence[Mapping[str, Any]], lines: Mapping[str, str], label: str) -> None:
    for key, name in lines.items():
        points = [(point["step"], point[key]) for point in curve if point[key] is not None]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_xlabel("step")
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    if axis.get_lines():
        axis.legend()
