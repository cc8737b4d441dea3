"""The evaluations of a training as a drawing (SVG), if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def curve_svg(curve: Sequence[Mapping[str, Any]], depth: int, title: str) -> str:
    """Loss, acceptance rate and mean accepted tokens on held-out text, by step."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "spec-sdk"  # the same curve gives the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title)
    losses, rates, lengths = figure.subplots(1, 3)
    _plot(losses, curve, {"loss": "held out"}, "divergence from the target (nats)")
    _plot(rates, curve, {"acceptance_rate": "greedy"}, "share of tokens that are the first choice")
    kinds = {"mean_accepted_tokens": "greedy", "mean_accepted_tokens_sampled": "temperature 1"}
    _plot(lengths, curve, kinds, f"tokens per target pass (chains of {depth})")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


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
