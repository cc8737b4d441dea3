"""Tables for people, as wide as their terminal; where one has no room it becomes a list."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 80
"""Columns of an output that is no terminal, unless the variable COLUMNS says otherwise."""
GAP = 2


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """``value`` for a table; – if there is none."""
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def percent(value: float | None) -> str:
    """A rate for a table; – if there is none."""
    return "–" if value is None else f"{100 * value:.1f} %"


def size(nbytes: int) -> str:
    """Bytes in the largest unit that leaves a whole part: ``1.6 GiB``, ``0 B``."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    file: TextIO | None = None,
    numbers: bool = True,
) -> None:
    """A table on ``file`` (stderr by default). Where there is little room, headers and the cells of the first and the
    last column break between words; where there is none, every row is an item of a list.

    ``numbers``: all columns but the first are set flush right.
    """
    console, rows = _console(file), list(rows)
    least, most = _widths(columns, rows)
    room = console.width - GAP * (len(columns) - 1) - sum(least)
    _print_lines(console, title, style="bold")
    if room < 0:
        _print_list(console, columns, rows)
        return
    # between two columns there is this padding and a border of one space
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        more = min(room, most[i] - least[i])
        room -= more
        table.add_column(column, justify="right" if numbers and i else "left", width=least[i] + more)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def print_facts(facts: Mapping[str, str], file: TextIO | None = None) -> None:
    """Names and what they are, one below the other, on ``file`` (stderr by default)."""
    console = _console(file)
    indent = max(map(len, facts), default=0) + 2
    for name, text in facts.items():
        _print_lines(console, f"{name.ljust(indent)}{text}", indent=indent)


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """``text`` in lines of at most ``width``, those after the first indented; a word that is longer stays whole."""
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ).rstrip()


def text_width(file: TextIO | None = None) -> int:
    """Columns of ``file`` (stderr by default)."""
    return _console(file).width


def _console(file: TextIO | None) -> Console:
    console = Console(file=file or sys.stderr, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        console.width = int(columns) if columns.isdecimal() and int(columns) else WIDTH
    return console


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """The least width of each column, and the width in which nothing of it breaks."""
    least, most = [], []
    for i, column in enumerate(columns):
        cells = [row[i] for row in rows]
        whole = [word for cell in cells for word in cell.split()] if i in (0, len(columns) - 1) else cells
        least.append(max(map(len, [*column.split(), *whole]), default=0))
        most.append(max(map(len, [column, *cells])))
    return least, most


def _print_list(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        _print_lines(console, f"{columns[0]} {row[0]}".strip())
        facts = [f"{column} {cell}" for column, cell in zip(columns[1:], row[1:], strict=True) if cell]
        _print_lines(console, f"  {'; '.join(facts)}", indent=2)
    console.print()


def _print_lines(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """``text`` broken between words; a word that is too long, such as a path, stays whole."""
    if text:
        console.print(wrapped(text, console.width, indent), style=style or None)
