"""A table on stdout whose rows are printed as they are measured."""

from __future__ import annotations

from collections.abc import Mapping


class LiveTable:
    """Columns as wide as was said before the first row was known, or as their heads; numbers flush right.

    ``columns``: head → width; below 0 the column is flush left. A cell that is wider pushes its row along. Prints the
    heads at once.
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        self._widths = [max(len(head), abs(width)) * (-1 if width < 0 else 1) for head, width in columns.items()]
        self.row(*columns)

    def row(self, *cells: str) -> None:
        """Raises ValueError where there are not as many cells as columns."""
        aligned = [
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, width in zip(cells, self._widths, strict=True)
        ]
        print("  ".join(aligned).rstrip(), flush=True)
