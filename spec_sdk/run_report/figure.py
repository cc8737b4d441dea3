"""What the page and the Markdown are made of: figures with the table of their numbers, and what these are about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from spec_sdk.counted import counted
from spec_sdk.run_report.groups import Group, Series
from spec_sdk.run_report.svg import element, mark, rectangle

NONE = "–"
NUMBER = re.compile(r"-?\d+(\.\d+)?( ?[%×]| of \d.*| \(baseline\))?$|–$")


@dataclass(frozen=True)
class Table:
    """``rows`` of texts. The first column is the row's name; numbers in others are sorted as numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """Which columns have numbers, to be set flush right: all cells begin with one, or are none."""
        cells = ([row[i] for row in self.rows] for i in range(len(self.columns)))
        return [i > 0 and all(NUMBER.match(cell) for cell in column) for i, column in enumerate(cells)]


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    picture: Markup
    label: str


@dataclass(frozen=True)
class Figure:
    """``basis``: machine, dtype, runs and baseline of its numbers; ``about``: how it is read. ``picture`` may be none.

    ``wide``: the picture is wider than a column, and is scrolled on its own where there is no room.
    """

    title: str
    about: str
    basis: str
    table: Table
    picture: Markup | None = None
    legend: Sequence[Key] = ()
    wide: bool = False


def basis(group: Group, shown: Iterable[Series], against: bool = True) -> str:
    """Of which runs, model, dtype and machine numbers are, and with ``against`` what they are compared with."""
    shown = list(shown)
    run = group.any_run
    told = f"{numbered(series.number for series in shown)}: {run.target}, {run.dtype}, on {machine_in_words(group)}"
    if not against:
        return told
    found = [b for series in shown if not group.is_baseline(series) and (b := group.baseline_of(series)) is not None]
    names = f"{group.baseline} of {numbered(b.number for b in found)}" if found else "none"
    return f"{told}; baseline: {names}"


def numbered(numbers: Iterable[int]) -> str:
    """``runs 1 and 3``."""
    named = [str(number) for number in sorted(set(numbers))]
    if len(named) == 1:
        return f"run {named[0]}"
    return f"runs {', '.join(named[:-1])} and {named[-1]}"


def machine_in_words(group: Group) -> str:
    """The device, with its threads where the device's name does not have them."""
    machine = group.any_run.machine
    device = str(machine.get("device"))
    threads = machine.get("threads")
    return device if threads is None or "thread" in device else f"{device}, {counted(threads, 'thread')}"


def legend_of(series: Sequence[tuple[int, str]]) -> list[Key]:
    """The marks of series."""
    return [Key(_small(mark(i, 7, 7)), label) for i, label in series]


def legend_of_stages(classes: Sequence[str]) -> list[Key]:
    """The colours of stages."""
    return [Key(_small(rectangle(1, 2, 12, 10, f"bar {stage}")), stage) for stage in classes]


def _small(picture: Markup) -> Markup:
    return element("svg", picture, viewBox="0 0 14 14", width=14.0, height=14.0, class_="key", aria_hidden="true")
