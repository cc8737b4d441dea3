"""The exceptions that are told in a single clear line: what the user can fix (exit status 2), a lost process (3)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user gave is wrong. The message is one line: what was wrong, where, the nearest valid value.

    The command line prints it as ``error: …`` without a traceback and exits with status 2.
    """


class RankLost(Exception):
    """Another process of a run on several ended, or did not answer in time. One line says what is known of it."""


class UnusableLogits(ValueError):
    """Logits that give no distribution: NaN, +inf, or -inf for every token. ``row`` is the row they stand in."""

    def __init__(self, row: int, where: str = "") -> None:
        super().__init__(f"{where}row {row} of the logits is NaN, infinite, or -inf for every token")
        self.row = row


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the nearest of ``known``, else a list of what exists ("" if nothing)."""
    names = sorted(set(known))
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    if near:
        return f", did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if names else ""
