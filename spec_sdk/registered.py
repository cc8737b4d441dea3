"""Which plugins a program gave itself, a notebook's cell say, beside those of installed packages."""

from __future__ import annotations

THIS_PROGRAM = "this program"
"""What stands where other plugins have their package."""

_names: set[str] = set()


def note_registered(name: str) -> None:
    """A plugin of this name was given."""
    _names.add(name)


def any_registered() -> bool:
    """Whether the program gave any."""
    return bool(_names)
