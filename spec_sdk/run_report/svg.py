"""SVG in the page: elements with escaped text, axes, and marks whose colours the page's style gives.

All drawings are WIDTH units wide, about as many as a telephone has pixels, and as wide on the page as there is room:
text stays readable on narrow screens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

WIDTH = 360.0
SERIES = 8
"""Colours that the style has; more series begin again, with another mark."""
MARKS = ("circle", "square", "triangle", "diamond", "cross")


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` is class, and an underscore in a name is a dash; None leaves an attribute out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    return Markup(f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>")


def drawing(title: str, description: str, height: float, marks: Iterable[Markup], width: float = WIDTH) -> Markup:
    """A whole picture. ``title`` and ``description`` are read out in its place."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *marks,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}. {description}",
        class_="wide" if width > WIDTH else None,
        width=width if width > WIDTH else None,
    )


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> Markup:
    """A line of text that begins, ends or has its middle at ``x``."""
    return element("text", words, x=x, y=y, class_=class_ or None, text_anchor=None if anchor == "start" else anchor)


def rectangle(x: float, y: float, width: float, height: float, class_: str, tip: str = "") -> Markup:
    """A bar; ``tip`` is shown where the pointer rests on it."""
    tips = [element("title", tip)] * bool(tip)
    return element("rect", *tips, x=x, y=y, width=max(width, 0.0), height=height, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def series_class(i: int) -> str:
    """The class that gives series ``i`` its colour."""
    return f"s{i % SERIES}"


def mark(i: int, x: float, y: float, tip: str = "", hollow: bool = False) -> Markup:
    """The mark of series ``i``: shapes differ beside colours, for whoever does not see these."""
    shape = MARKS[(i + i // SERIES) % len(MARKS)]
    tips = [element("title", tip)] * bool(tip)
    look = f"mark {series_class(i)}{' hollow' if hollow else ''}"
    if shape == "circle":
        return element("circle", *tips, cx=x, cy=y, r=4.0, class_=look)
    paths = {
        "square": f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z",
        "triangle": f"M{x:.1f} {y - 4.8:.1f}l4.6 8.2h-9.2z",
        "diamond": f"M{x:.1f} {y - 5.2:.1f}l5.2 5.2l-5.2 5.2l-5.2 -5.2z",
        "cross": f"M{x - 4:.1f} {y - 1.5:.1f}h2.5v-2.5h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5z",
    }
    return element("path", *tips, d=paths[shape], class_=look)


def polyline(i: int, points: Sequence[tuple[float, float]]) -> Markup:
    """The line of series ``i``."""
    dashed = " dashed" if i // SERIES % 2 else ""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=joined, class_=f"line {series_class(i)}{dashed}")


def ticks(most: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round numbers from 0 to ``most`` or a little above it, about ``count`` of them; only ``whole`` ones if asked."""
    if most <= 0:
        return [0.0, 1.0]
    rough = max(most / count, 1.0 if whole else 0.0)
    size = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(size * factor for factor in factors if size * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def tick_text(value: float) -> str:
    return f"{value:.10g}"


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
