"""What a benchmark was to show, and whether it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Aim = Mapping[str, str]
"""``aim`` in words, ``result`` (met, missed, not measured here), ``figure``: what it is judged by."""


def aim(name: str, met: bool | None, figure: str) -> Aim:
    """``met`` is None where nothing was measured that could tell."""
    return {"aim": name, "result": "not measured here" if met is None else "met" if met else "missed", "figure": figure}


def print_aims(aims: Iterable[Aim]) -> None:
    """A line for each on stdout, the result first."""
    for each in aims:
        print(f"{each['result']:18} {each['aim']}: {each['figure']}", flush=True)
