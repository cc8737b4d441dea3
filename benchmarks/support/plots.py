"""Plots of reports as SVG files. Without matplotlib there are none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spec_sdk import svg_plot


def new_figure(width: float, height: float) -> Any | None:
    """A matplotlib figure of this size in inches; without matplotlib None, with a line on stderr."""
    if not svg_plot.can_plot():
        print("no plot: matplotlib is not installed (pip install 'spec-sdk[benchmarks]')", file=sys.stderr)
        return None
    return svg_plot.new_figure(width, height)


def save(figure: Any, path: Path) -> None:
    """Write ``figure`` as SVG."""
    path.write_text(svg_plot.svg_of(figure), encoding="utf-8")
    print(f"written: {path}")
