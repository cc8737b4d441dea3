"""The figures' drawings: bars, stacked bars, dots by row, lines, and a map of shades."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from spec_sdk.metrics import STAGES
from spec_sdk.run_report.svg import (
    WIDTH,
    drawing,
    element,
    line,
    mark,
    polyline,
    rectangle,
    series_class,
    text,
    tick_text,
    ticks,
)

LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 12.0, 40.0
"""Room around the lines of a plot."""
ROW = 34.0
SHOWN_STAGES = ("prefill", *STAGES, "other")
"""Stages in the order in which they are shown. Each has its colour by a class of the style that is called like it."""


@dataclass(frozen=True)
class Bar:
    """``low`` to ``high`` is drawn as a whisker. ``series``: whose colour it has."""

    label: str
    value: float
    shown: str
    series: int
    low: float | None = None
    high: float | None = None
    tip: str = ""


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    tip: str


@dataclass(frozen=True)
class Curve:
    """Points from left to right. ``series``: whose colour and mark it has; ``hollow``: marks are not filled."""

    label: str
    series: int
    points: Sequence[Point]
    hollow: bool = False


def bars(title: str, description: str, rows: Sequence[Bar], reference: float | None = None) -> Markup:
    """A bar in every row under its label; ``reference`` is a line across."""
    most = max([*(row.value for row in rows), *(row.high or 0 for row in rows), reference or 0]) or 1.0
    room = WIDTH - 60
    marks: list[Markup] = []
    for i, row in enumerate(rows):
        y = i * ROW
        marks.append(text(0, y + 12, row.label))
        marks.append(rectangle(0, y + 17, row.value / most * room, 11, f"bar {series_class(row.series)}", row.tip))
        end = row.value
        if row.low is not None and row.high is not None:
            marks.append(line(row.low / most * room, y + 22.5, row.high / most * room, y + 22.5, "whisker"))
            end = max(end, row.high)
        marks.append(text(end / most * room + 5, y + 26.5, row.shown, "value"))
    if reference is not None:
        x = reference / most * room
        marks.append(line(x, 0, x, ROW * len(rows), "reference"))
    return drawing(title, description, ROW * len(rows), marks)


def stacked(title: str, description: str, rows: Sequence[tuple[str, Mapping[str, float], str]], unit: str) -> Markup:
    """A bar of stages in every row: label, value by stage, and the text behind the bar."""
    most = max((sum(stages.values()) for _, stages, _ in rows), default=0) or 1.0
    room = WIDTH - 66
    marks: list[Markup] = []
    for i, (label, stages, shown) in enumerate(rows):
        x, y = 0.0, i * ROW
        marks.append(text(0, y + 12, label))
        for stage, value in stages.items():
            width = value / most * room
            tip = f"{label}: {stage} {value:.3g} {unit}"
            marks.append(rectangle(x, y + 17, width, 11, f"bar {stage}", tip))
            x += width
        marks.append(text(x + 5, y + 26.5, shown, "value"))
    return drawing(title, description, ROW * len(rows), marks)


def dots(
    title: str, description: str, rows: Sequence[tuple[str, Sequence[tuple[int, float, str]]]], reference: float
) -> Markup:
    """In every row a mark for each series: (label, [(series, value, tip)])."""
    values = [value for _, found in rows for _, value, _ in found]
    scale = ticks(max([*values, reference]))
    room, height = WIDTH - 16, ROW * len(rows)

    def across(value: float) -> float:
        return 8 + value / scale[-1] * room

    marks = [line(across(tick), 0, across(tick), height, "grid") for tick in scale]
    marks.append(line(across(reference), 0, across(reference), height, "reference"))
    for i, (label, found) in enumerate(rows):
        y = i * ROW
        marks.append(line(8, y + 24, WIDTH - 8, y + 24, "grid"))
        marks.append(text(0, y + 12, label))
        marks += [mark(series, across(value), y + 24, tip) for series, value, tip in found]
    marks += [_tick(across(tick), height + 14, tick) for tick in scale]
    return drawing(title, description, height + 20, marks)


def _tick(x: float, y: float, value: float) -> Markup:
    anchor = "start" if x < 12 else "end" if x > WIDTH - 12 else "middle"
    return text(x, y, tick_text(value), "tick", anchor)


def lines(
    title: str,
    description: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    doubling: bool = False,
    most_y: float | None = None,
    joined: bool = True,
    front: Sequence[tuple[float, float]] = (),
    reference: float | None = None,
) -> Markup:
    """Curves over one x. ``doubling``: x is drawn by its logarithm, with a tick at every power of 2.

    ``joined``: with lines between the points. ``front``: points of a line of its own; ``reference``: a line across.
    """
    height = 250.0
    points = [point for curve in curves for point in curve.points]
    y_ticks = ticks(max([*(point.y for point in points), reference or 0]) if most_y is None else most_y)
    most_x = max(point.x for point in points)
    least_x = min(point.x for point in points) if doubling else 0.0
    if doubling:
        top = max(math.ceil(math.log2(most_x)), 1)
        x_ticks = [2.0**i for i in range(math.floor(math.log2(least_x)), top + 1)]
    else:
        x_ticks = ticks(most_x, 8, whole=all(float(point.x).is_integer() for point in points))

    def across(x: float) -> float:
        low, high = x_ticks[0], x_ticks[-1]
        share = math.log2(x / low) / math.log2(high / low) if doubling else x / (high or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return height - BOTTOM - y / y_ticks[-1] * (height - TOP - BOTTOM)

    marks: list[Markup] = []
    for tick in y_ticks:
        marks.append(line(LEFT, down(tick), WIDTH - RIGHT, down(tick), "grid"))
        marks.append(text(LEFT - 5, down(tick) + 4, tick_text(tick), "tick", "end"))
    for tick in x_ticks:
        marks.append(line(across(tick), down(0), across(tick), down(0) + 4, "axis"))
        marks.append(text(across(tick), height - BOTTOM + 16, tick_text(tick), "tick", "middle"))
    marks.append(text((LEFT + WIDTH - RIGHT) / 2, height - 6, x_label, "label", "middle"))
    middle = (TOP + height - BOTTOM) / 2
    marks.append(
        element(
            "text",
            y_label,
            x=11.0,
            y=middle,
            class_="label",
            text_anchor="middle",
            transform=f"rotate(-90 11 {middle:g})",
        )
    )
    if reference is not None:
        marks.append(line(LEFT, down(reference), WIDTH - RIGHT, down(reference), "reference"))
    if front:
        along = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in front)
        marks.append(element("polyline", points=along, class_="front"))
    for curve in curves:
        places = [(across(point.x), down(point.y)) for point in curve.points]
        if joined and len(places) > 1:
            marks.append(polyline(curve.series, places))
        marks += [
            mark(curve.series, x, y, point.tip, curve.hollow)
            for (x, y), point in zip(places, curve.points, strict=True)
        ]
    return drawing(title, description, height, marks)


def shades(
    title: str, description: str, rows: Sequence[tuple[str, Sequence[float | None]]], row_label: str, x_label: str
) -> Markup:
    """A map of values between 0 and 1: a row of cells for each, the darker the greater; nothing where it is None."""
    columns = max(len(values) for _, values in rows)
    left, cell = 44.0, 22.0
    width = (WIDTH - left) / columns
    marks = [text(0, 11, row_label, "label")]
    for i, (label, values) in enumerate(rows):
        y = 16 + i * cell
        marks.append(text(left - 5, y + 15, label, "tick", "end"))
        for j, value in enumerate(values):
            shown = "no prediction" if value is None else f"{100 * value:.0f} %"
            tip = element("title", f"{row_label} {label}, layer {j}: {shown}")
            place = {"x": left + j * width, "y": y, "width": max(width - 0.6, 0.4), "height": cell - 1.5}
            if value is None:
                marks.append(element("rect", tip, **place, class_="nothing"))
            else:
                marks.append(element("rect", tip, **place, class_="empty"))
                marks.append(element("rect", tip, **place, class_="heat", fill_opacity=value))
    bottom = 16 + len(rows) * cell
    step = max(1, math.ceil(columns / 8))
    marks += [text(left + (j + 0.5) * width, bottom + 12, str(j), "tick", "middle") for j in range(0, columns, step)]
    marks.append(text((left + WIDTH) / 2, bottom + 28, x_label, "label", "middle"))
    return drawing(title, description, bottom + 34, marks)
