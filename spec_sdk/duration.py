"""How long something takes, for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3 h 20 min``."""
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
