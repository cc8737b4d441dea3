"""Files that are either whole or not there, and paths that a user gave."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from spec_sdk.errors import UserError

LARGEST_INPUT = 1 << 28
"""Bytes of the largest file that is read whole: a device such as /dev/zero has no end."""
_PARTIAL = ".partial"


class StagedFile:
    """A file that is written beside ``path``, under a name of its own, and renamed into place by :meth:`publish`.

    ``file`` is open for text, and locked until it is in place: what is not locked was left by a process that was
    killed, and is removed when the next one writes there. :meth:`discard` removes what was not published; it may be
    called at any time, twice too. Raises OSError, which names ``path`` if the disk is full, and for a device or a pipe,
    in whose place there would be a file.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "There is something else than a file", str(path))
        remove_abandoned(path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}"))
        while True:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
            if _is_held(handle) and os.path.exists(name):
                break
            # another process took it for abandoned before it was locked
            os.close(handle)
        self.path = path
        self.file: TextIO = _NamedFile(handle, path)
        self._staged: Path | None = Path(name)

    def finish(self) -> None:
        """Have all of it on the disk. Raises OSError, such as for a full one."""
        if not self.file.closed:
            self.file.flush()
            with _naming(self.path):
                os.fsync(self.file.fileno())

    def publish(self) -> None:
        """Finish it and rename it to ``path``. Raises OSError."""
        self.finish()
        assert self._staged is not None
        os.chmod(self._staged, 0o666 & ~umask())
        os.replace(self._staged, self.path)
        self._staged = None
        self.file.close()

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


class _NamedFile(io.TextIOWrapper):
    """A text file whose errors say what it is to be: the system does not say which file a full disk is of."""

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(io.BufferedWriter(io.FileIO(handle, "w")), encoding="utf-8")
        self._path = path

    def write(self, text: str, /) -> int:
        with _naming(self._path):
            return super().write(text)

    def flush(self) -> None:
        with _naming(self._path):
            super().flush()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove those of ``paths``, staged files and directories, that no process holds a lock on any more."""
    for path in paths:
        with contextlib.suppress(OSError), _opened(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextlib.contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A new directory in ``parent``, removed on the way out if it is there still. Raises OSError.

    Those of the same ``prefix`` that killed processes left are removed first.
    """
    remove_abandoned(parent.glob(f"{glob.escape(prefix)}*"))
    made, handle = _held_directory(parent, prefix)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def _held_directory(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        made = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        # another process may take it for abandoned before it is locked
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(made, os.O_RDONLY)
            if _is_held(handle) and made.exists():
                return made, handle
            os.close(handle)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    # a pipe would be waited for
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_held(handle: int) -> bool:
    """Lock an open file or directory for this process; False if another one holds it.

    A file system that knows no locks lets nobody take it for abandoned either.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def expanded(name: str, option: str) -> Path:
    """``name`` with a leading ~ resolved, whether or not there is such a file.

    Raises UserError, naming ``option``, for the home of an unknown user, for what can be no path, and for one that this
    user may not reach.
    """
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f"{option}: the name {shortened(name)} is too long") from error
        raise UserError(f"{option}: {name} cannot be reached: {error.strerror or error}") from error
    except RuntimeError as error:
        raise UserError(f"{option}: {name}: {error}") from error
    except ValueError as error:
        # a null byte, or half a surrogate pair
        raise UserError(f"{option}: {shortened(name)!r} is no path: {error}") from error
    return path


def shortened(name: str) -> str:
    """The beginning of a long name."""
    return name if len(name) <= 80 else f"{name[:80]}…"


def names_in(directory: Path) -> list[str]:
    """What lies in a directory, sorted. Raises UserError unless its files may be listed and opened."""
    try:
        names = sorted(os.listdir(directory))
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise UserError(f"{directory}: cannot be read: {error.strerror or error}") from error
    return names


def read_bytes(path: Path, where: str) -> bytes:
    """All of a file. Raises UserError, which begins with ``where``, for what cannot be read or does not end."""
    try:
        with path.open("rb") as file:
            parts, size = [], 0
            while part := file.read(1 << 20):
                parts.append(part)
                size += len(part)
                if size > LARGEST_INPUT:
                    raise UserError(f"{where} is larger than {LARGEST_INPUT >> 20} MiB")
    except FileNotFoundError:
        raise UserError(f"{where} does not exist") from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror or error}") from error
    return b"".join(parts)


def read_text(path: Path, where: str) -> str:
    """All of a UTF-8 file, without a byte order mark. Raises UserError as :func:`read_bytes`, and for other text."""
    content = read_bytes(path, where)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is no UTF-8 text (byte {error.start})") from error


def unwritable(place: Path) -> str | None:
    """Why nothing can be written into a directory, which need not be there yet; None if it can."""
    existing = next(d for d in (place, *place.absolute().parents) if os.path.lexists(d))
    if not existing.is_dir():
        return f"{existing} is a file, not a directory"
    # permissions do not tell all: a file system may be read-only, or like /proc hold no files of ours
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"{existing} cannot be written to ({error.strerror or error})"


def missing_directories(path: Path) -> list[Path]:
    """``path`` and its parents that do not exist, innermost first: what ``mkdir(parents=True)`` would make."""
    missing = []
    for directory in (path, *path.parents):
        if os.path.exists(directory):
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
