"""Numbers of a matrix's rows that somebody asks for."""

from __future__ import annotations

import torch


def numbers_of(row_K: torch.Tensor, rows: int) -> list[int]:
    """The numbers, on the host. Raises IndexError for one that is not below ``rows``, or negative."""
    # few, and no operations of torch's on them
    numbers: list[int] = row_K.tolist()
    least, most = (min(numbers), max(numbers)) if numbers else (0, 0)
    if least < 0 or most >= rows:
        raise IndexError(f"row {least if least < 0 else most} of {rows}")
    return numbers
