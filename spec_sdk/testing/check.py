"""One thing that a plugin is held to: a promise in words, and what looks whether it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


class Skipped(str):
    """What a check returns that looked at nothing: why, in a few words."""


@dataclass(frozen=True)
class Check:
    """``promise``: what holds of a sound plugin, in one line. ``run`` raises AssertionError with the evidence against
    it, and may return a few words on how it was looked at (how many draws), or :class:`Skipped` ones on why it was not.
    """

    promise: str
    run: Callable[[], str | None]


def run_checks(checks: Iterable[Check]) -> None:
    """All of them, one after the other; what the first that fails raises is passed on."""
    for check in checks:
        check.run()
