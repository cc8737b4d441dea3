"""Plots of reports as SVG files: the same report gives the same file. Without matplotlib there are none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def new_figure(width: float, height: float) -> Any | None:
    """A matplotlib figure of this size in inches; without matplotlib None, with a line on stderr."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'spec-sdk[benchmarks]')", file=sys.stderr)
        return None
    matplotlib.rcParams["svg.hashsalt"] = "spec-sdk"
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write ``figure`` as SVG, without the date."""
    figure.savefig(path, format="svg", metadata={"Date": None})
    print(f"written: {path}")
