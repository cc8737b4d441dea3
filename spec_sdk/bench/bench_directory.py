"""The directory of a benchmark: records as they come, and what is derived from them at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from spec_sdk.bench.reading import read_bench
from spec_sdk.bench.record_file import RecordFile
from spec_sdk.bench.records import SCHEMA_VERSION, Record
from spec_sdk.bench.same_settings import first_difference, settings_of
from spec_sdk.bench.show import show_run
from spec_sdk.bench.summary import exit_status, summary_of
from spec_sdk.errors import UserError
from spec_sdk.events import finite
from spec_sdk.files import missing_directories, remove_empty, write_json
from spec_sdk.json_lines import JsonObject
from spec_sdk.run_output import SUMMARY, write_config
from spec_sdk.version import __version__


class BenchDirectory:
    """Where a run writes. ``asked``: what it asks, as the record of the run has it; ``config`` goes beside the records.

    ``found``: what an earlier run with the same settings left. ``complete``: it had come to its end, so that nothing is
    left to ask. Raises UserError for a directory of other settings, saying which.
    """

    def __init__(self, directory: Path, asked: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self._directory = directory
        self._asked: dict[str, Any] = finite({"spec_sdk": __version__, **asked})
        self._config = config
        self._made = missing_directories(directory)
        self._file = RecordFile(directory)
        self.found = self._file.found
        try:
            if self.found is not None:
                self._refuse_others(self.found.head, self._asked)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    @property
    def complete(self) -> bool:
        """Whether an earlier run came to its end. Not if a candidate could not be started, which is tried again."""
        if self.found is None or not (self._directory / SUMMARY).is_file():
            return False
        return not any(failure.reason == "not_started" for failure in self.found.failures)

    def begin(self, loaded: Mapping[str, Any], overrides: Sequence[str]) -> None:
        """Write the record of the run, or of its going on. ``loaded``: what is known once the target is.

        Raises UserError where it would go on with another target, or on another machine.
        """
        if self.found is not None:
            self._refuse_others(self.found.head, loaded)
        (self._directory / SUMMARY).unlink(missing_ok=True)
        write_config(self._directory, self._config)
        told = [o for o in overrides if self._config.get("prompt") is not None or not o.startswith("prompt=")]
        self.append(
            [
                {
                    "record": "run",
                    "schema_version": SCHEMA_VERSION,
                    "command": ["python", "-m", "spec_sdk", *told],
                    "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "resumed": self.found is not None,
                    **self._asked,
                    **loaded,
                }
            ]
        )

    def append(self, records: Iterable[Record]) -> None:
        """Write records."""
        self._file.append(records)

    def close(self, file: TextIO) -> int:
        """All is answered: write what is derived, print the tables to ``file``; return the exit status."""
        status = self.derive(self._directory, not self.complete, file)
        print(f"results in {self._directory}", file=sys.stderr)
        return status

    def derive(self, directory: Path, write: bool, file: TextIO) -> int:
        """Compute what there is to say of the records in ``directory``: print it, and write it there if it is to be
        written; return the exit status.
        """
        run = read_bench(directory)
        if write:
            write_json(directory / SUMMARY, summary_of(run))
        show_run(run, file)
        return exit_status(run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """After an interrupt say how to go on; a directory without any record is removed."""
        self._file.__exit__(kind, error, at)
        if kind is not None and issubclass(kind, KeyboardInterrupt) and not self._file.empty:
            said = f"the same command with output_dir={self._directory} goes on where this one ends"
            print(said, file=sys.stderr)
        if self._file.empty:
            self._file.remove()
            remove_empty(self._made)

    def _refuse_others(self, head: JsonObject, here: Mapping[str, Any]) -> None:
        """Raise UserError for the first thing that is not the same."""
        differing = first_difference(settings_of(head.data), settings_of(here))
        if differing is not None:
            raise UserError(
                f"output_dir: {self._directory} has a run of other settings ({differing}); use another directory, or "
                "the command that it was made with"
            )
