"""The directory of one run: metrics.json, config.yaml and events.jsonl, each whole or not there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml

from spec_sdk.errors import UserError
from spec_sdk.files import missing_directories, remove_empty, write_atomically, write_json

METRICS, CONFIG, EVENTS = "metrics.json", "config.yaml", "events.jsonl"
PARTIAL = EVENTS + ".partial"


def check_writable(directory: Path) -> None:
    """Raise UserError if ``directory`` cannot be made or written to, before any work is done for it."""
    for existing in (directory, *directory.absolute().parents):
        if existing.exists() or existing.is_symlink():
            if not existing.is_dir():
                raise UserError(f"output_dir: {existing} is a file, not a directory")
            if not os.access(existing, os.W_OK | os.X_OK):
                raise UserError(f"output_dir: {existing} cannot be written to")
            return


class RunOutput:
    """Writes a run's directory, which is made on entry. ``events`` is where JSON lines go while the run lasts.

    Leaving without :meth:`save` having succeeded removes what was made: nothing half-written stays.
    """

    events: TextIO

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._saved = False
        self._made: list[Path] = []

    def __enter__(self) -> RunOutput:
        self._made = missing_directories(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.events = open(self.directory / PARTIAL, "w", encoding="utf-8")
        return self

    def save(self, metrics: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Put all three files in place. Raises OSError, after which leaving removes the events as well."""
        write_atomically(self.directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        self.events.close()
        os.replace(self.directory / PARTIAL, self.directory / EVENTS)
        write_json(self.directory / METRICS, metrics)
        self._saved = True

    def __exit__(self, *_: object) -> None:
        self.events.close()
        if not self._saved:
            for name in (PARTIAL, EVENTS, CONFIG):
                (self.directory / name).unlink(missing_ok=True)
            remove_empty(self._made)
