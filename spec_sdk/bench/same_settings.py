"""Whether a benchmark that goes on is the one that was begun: the same settings on the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAME_MACHINE = ("hardware", "cores", "threads", "python", "torch")
"""What of the machine must be the same."""
OF_ONE_START = ("command", "started", "resumed")
"""What the record of a run says of its start alone."""


def settings_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Of the record of a run, or of a part of it, what must be the same where it goes on."""
    settings = {name: value for name, value in run.items() if name not in (*OF_ONE_START, "machine")}
    machine = run.get("machine")
    return settings | ({name: machine.get(name) for name in SAME_MACHINE} if isinstance(machine, Mapping) else {})


def first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first setting of ``here`` that is another one ``there``, in words; None if none is."""
    for name, value in here.items():
        if there.get(name) != value:
            what, was, now = _differing(name, there.get(name), value)
            return f"{what}: {was} there, {now} here"
    return None


def _differing(name: str, there: Any, here: Any) -> tuple[str, str, str]:
    """What differs, with its own name where it is inside something, and both values, in words."""
    if name == "candidates":
        return name, " + ".join(there or ()), " + ".join(here or ())
    if isinstance(there, dict) and isinstance(here, dict):
        inside = next(key for key in {**there, **here} if there.get(key) != here.get(key))
        return f"{name}.{inside}", str(there.get(inside)), str(here.get(inside))
    return name, str(there), str(here)
