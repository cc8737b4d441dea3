"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from spec_sdk.errors import UserError


class StagedFile:
    """A file that is written beside ``path``, under a name of its own, and renamed into place by :meth:`publish`.

    ``file`` is open for text. :meth:`discard` removes what was not published; it may be called at any time, twice too.
    """

    def __init__(self, path: Path) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
        self.path = path
        self.file: TextIO = os.fdopen(handle, "w", encoding="utf-8")
        self._staged: Path | None = Path(name)

    def finish(self) -> None:
        """Have all of it on the disk. Raises OSError, such as for a full one."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def publish(self) -> None:
        """Finish it and rename it to ``path``. Raises OSError."""
        self.finish()
        assert self._staged is not None
        os.chmod(self._staged, 0o666 & ~umask())
        os.replace(self._staged, self.path)
        self._staged = None

    def discard(self) -> None:
        """Remove it unless it was published."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses; the file goes anyway
            self.file.close()
        if self._staged is not None:
            self._staged.unlink(missing_ok=True)
            self._staged = None


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place. On failure nothing is left behind. Raises OSError."""
    staged = StagedFile(path)
    try:
        staged.file.write(text)
        staged.publish()
    finally:
        staged.discard()


def json_text(value: Any) -> str:
    """``value`` as indented JSON. Raises ValueError for a number that JSON does not know, such as NaN."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """``value`` as indented JSON, atomically."""
    write_atomically(path, json_text(value))


def expanded(name: str, option: str) -> Path:
    """``name`` with a leading ~ resolved. Raises UserError, naming ``option``, for the home of an unknown user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UserError(f"{option}: {name}: {error}") from error


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


def umask() -> int:
    """The permissions that this process's new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
