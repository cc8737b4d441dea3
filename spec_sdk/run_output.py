"""The directory of one run: metrics.json, config.yaml and events.jsonl, each whole or not there.

A run that speculates on attention adds attention.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml

from spec_sdk.errors import UserError
from spec_sdk.files import (
    StagedFile,
    expanded,
    json_text,
    missing_directories,
    remove_abandoned,
    remove_empty,
    unwritable,
    write_atomically,
)

OUTPUTS = Path("outputs")
"""Where runs write that are not told where."""
METRICS, CONFIG, EVENTS, ATTENTION = "metrics.json", "config.yaml", "events.jsonl", "attention.html"
SUMMARY = "summary.json"
"""Of several: the jobs of a sweep, the candidates of a benchmark."""
OUTCOMES = "jobs.jsonl"
"""In a sweep's directory while it runs; summary.json takes its place."""


def check_writable(directory: Path) -> None:
    """Raise UserError if ``directory`` cannot be made or written to, before any work is done for it."""
    expanded(str(directory), "output_dir")
    fault = unwritable(directory)
    if fault is not None:
        raise UserError(f"output_dir: {fault}")


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write what ran into a directory that is there. Raises OSError."""
    write_atomically(directory / CONFIG, _config_text(config))


def unfinished_files(directory: Path) -> list[Path]:
    """What runs below ``directory`` had begun to write when they were ended, or write now."""
    names = (METRICS, CONFIG, EVENTS, ATTENTION)
    return [path for name in names for path in directory.rglob(f".{name}.*.partial") if path.is_file()]


class RunOutput:
    """Writes a run's directory, which is made on entry. ``events`` is where JSON lines go while the run lasts.

    Leaving without :meth:`save` having succeeded removes what this run made and touches nothing else: the files of an
    earlier run into the same directory stay as they were.
    """

    events: TextIO

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made: list[Path] = []
        self._staged: list[StagedFile] = []

    def __enter__(self) -> RunOutput:
        if self.directory.is_relative_to(OUTPUTS):
            # what killed runs left; elsewhere the next run into the same directory removes it
            remove_abandoned([*OUTPUTS.glob("*/*/.*.partial"), *OUTPUTS.glob("*/*/*/.*.partial")])
        self._made = missing_directories(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.events = self._stage(EVENTS).file
        return self

    def save(
        self,
        metrics: Mapping[str, Any],
        config: Mapping[str, Any],
        attention: str | None = None,
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Write all files whole, then put them in place. Raises OSError, before anything is in place.

        ``attention``: the page of shaded text, if there is one; that of an earlier run does not stay beside this one's.
        ``others``: what a task writes besides, by the file's name.
        """
        for name, text in (others or {}).items():
            self._stage(name).file.write(text)
        if attention is not None:
            self._stage(ATTENTION).file.write(attention)
        self._stage(CONFIG).file.write(_config_text(config))
        self._stage(METRICS).file.write(json_text(metrics))
        for staged in self._staged:
            staged.finish()
        for staged in self._staged:
            staged.publish()
        if attention is None:
            (self.directory / ATTENTION).unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        for staged in self._staged:
            staged.discard()
        remove_empty(self._made)

    def _stage(self, name: str) -> StagedFile:
        staged = StagedFile(self.directory / name)
        self._staged.append(staged)
        return staged


def _config_text(config: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return text
