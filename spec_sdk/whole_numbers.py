"""Whole numbers as plugins give them: of Python, of NumPy, or in a tensor."""

from __future__ import annotations

import operator
from typing import Any


def as_int(value: Any) -> Any:
    """A whole number as an int, which compares and is written as JSON as any other; what is none as it is."""
    if type(value) is int or isinstance(value, bool):
        return value
    try:
        return int(operator.index(value))
    except TypeError:
        return value
