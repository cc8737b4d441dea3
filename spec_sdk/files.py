"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place. On failure nothing is left behind. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """``value`` as indented JSON, atomically. Raises ValueError for a number that JSON does not know, such as NaN."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def missing_directories(path: Path) -> list[Path]:
    """``path`` and its parents that do not exist, innermost first: what ``mkdir(parents=True)`` would make."""
    missing = []
    for directory in (path, *path.parents):
        if directory.exists():
            break
        missing.append(directory)
    return missing


def remove_empty(directories: Sequence[Path]) -> None:
    """Remove ``directories`` in order, up to the first that is not empty or not there."""
    with contextlib.suppress(OSError):
        for directory in directories:
            directory.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
