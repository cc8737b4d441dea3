"""A count and what is counted, for messages."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """``1 job``, ``3 jobs``: the plural is made with an s."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
