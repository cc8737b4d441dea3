"""Giving freed host memory back to the system while a model is loaded.

glibc keeps what was freed below something that is still in use. A backend that packs its weights frees a plain copy of
every matrix, which adds up to a third of the model.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any


def return_freed_memory() -> None:
    """Give back whole pages that this process has freed; nothing where the C library is not glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        found: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found
