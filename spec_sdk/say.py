"""What people are told while something runs, beside what it prints as its answer."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)
