"""The sizes that passes are padded to where they are captured: so that few come."""

from __future__ import annotations


def power_of_two(size: int) -> int:
    """The least power of two that is not less.

    >>> [power_of_two(size) for size in (1, 2, 3, 5, 8, 100)]
    [1, 2, 4, 8, 8, 128]
    """
    return 1 << (size - 1).bit_length()
