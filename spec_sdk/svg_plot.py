"""Drawings by matplotlib as SVG: the same figures give the same file."""

from __future__ import annotations

import importlib.util
import io
from typing import Any


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure of this size in inches. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    # else the names of its parts are drawn anew each time
    matplotlib.rcParams["svg.hashsalt"] = "spec-sdk"
    return Figure(figsize=(width, height), layout="constrained")


def svg_of(figure: Any) -> str:
    """The text of its file, without the date."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
