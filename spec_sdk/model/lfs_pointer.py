"""What Git LFS leaves in the place of a large file that was not fetched: a text of three lines."""

from __future__ import annotations

import contextlib
from pathlib import Path

from spec_sdk.errors import UserError

BEGINNING = b"version https://git-lfs"


def check_pointer(path: Path) -> None:
    """Raise UserError if there is a pointer in the place of the file."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(BEGINNING)) == BEGINNING:
            raise UserError(f"{path}: is a pointer of Git LFS, not the file itself; fetch that by: git lfs pull")
