"""``bench.jsonl`` while a run writes it: append-only, flushed line by line, held by one process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from spec_sdk.bench.reading import BenchRun, bench_run
from spec_sdk.bench.records import FILE
from spec_sdk.errors import UserError
from spec_sdk.events import finite
from spec_sdk.json_lines import Lines


class RecordFile:
    """Appends records to the ``bench.jsonl`` of ``directory``, which is made if need be.

    ``found``: what an earlier run left there, None if nothing did. Raises UserError if another process writes it, or if
    what is there cannot be read. A last line that a kill cut off is removed.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / FILE
        self._file = self._path.open("ab")
        try:
            self._hold()
            self.found = self._read()
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records in one go, a NaN or infinity in them as null, and have the system take them. Raises OSError."""
        text = "".join(json.dumps(finite(record), allow_nan=False) + "\n" for record in records)
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    @property
    def empty(self) -> bool:
        """Whether there is no record in it."""
        return not self._path.exists() or self._path.stat().st_size == 0

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"output_dir: another run writes {self._path} now") from None
        except OSError:
            # a file system without locks
            return

    def _read(self) -> BenchRun | None:
        whole = self._path.read_bytes().rpartition(b"\n")
        kept = len(whole[0]) + len(whole[1])
        if whole[2]:
            os.truncate(self._path, kept)
        if not kept:
            return None
        return bench_run(Lines(self._path), str(self._path))
