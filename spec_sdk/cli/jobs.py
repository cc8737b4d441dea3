"""One job of the command line: a composed config made into settings, its task run, its outcome kept."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig

from spec_sdk.config.composing import settings_of
from spec_sdk.errors import RankLost, UserError
from spec_sdk.ranks import launched_processes

EXIT_OK, EXIT_BUG, EXIT_USER_ERROR, EXIT_LOST = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_CLOSED_PIPE, EXIT_TERMINATED = 130, 141, 143
RESULTS = {
    EXIT_BUG: "bug",
    EXIT_USER_ERROR: "bad input",
    EXIT_LOST: "lost a process",
    EXIT_INTERRUPTED: "interrupted",
    EXIT_TERMINATED: "terminated",
    EXIT_OK: "ok",
}
"""What a sweep's table says of a job."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems and ``timeout`` send it: ends a run as Ctrl-C does, with the text so far kept."""


def end_on_sigterm() -> None:
    """Have SIGTERM raise :class:`Terminated`. Does nothing outside the main thread, where no handler can be set."""

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)


@dataclass
class Outcome:
    """How a job of a sweep ended: its exit status, one line if it failed, and where it wrote."""

    name: str
    status: int
    error: str | None
    output_dir: Path

    def as_json(self) -> dict[str, Any]:
        """The job's line of summary.json, with the summary of its metrics.json if it wrote one."""
        path = self.output_dir / "metrics.json"
        # a failed job wrote none: what lies there is of an earlier sweep into the same directory
        wrote = self.status in (EXIT_OK, EXIT_INTERRUPTED, EXIT_TERMINATED) and path.is_file()
        metrics = json.loads(path.read_text(encoding="utf-8")) if wrote else {}
        return {
            "job": self.name,
            "status": self.status,
            "error": self.error,
            "output_dir": str(self.output_dir) if self.output_dir.is_dir() else None,
            "pipeline": metrics.get("pipeline"),
            "summary": metrics.get("summary"),
        }


def run_task(config: DictConfig, directory: Path | None = None) -> int:
    """Run the task that ``config`` chooses and return its exit status.

    ``directory`` is where a job of a sweep writes; otherwise ``output_dir`` or the default is. Raises UserError for bad
    input, and whatever the task raises.
    """
    settings = settings_of(config)
    if directory is not None:
        settings = replace(settings, output_dir=directory)

    from spec_sdk.registry import Registry

    registry = Registry.discover()
    _warn_of_problems()
    make: Any
    make, task_config = registry.configure("task", settings.task)
    if launched_processes() > 1 and not make.every_rank:
        raise UserError(
            f"task={make.name}: it runs in one process, and {launched_processes()} were launched; start it as "
            "python -m spec_sdk, without a launcher"
        )
    return int(make(task_config).run(settings))


@functools.cache
def _warn_of_problems() -> None:
    """Tell of packages that could not be loaded: once, however many jobs a sweep has."""
    from spec_sdk.registry import Registry

    for problem in Registry.discover().problems:
        print(f"warning: {problem}", file=sys.stderr)


def status_of(error: BaseException) -> int:
    """The exit status that an exception means."""
    if isinstance(error, Terminated):
        return EXIT_TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return EXIT_CLOSED_PIPE
    if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno in NO_SPACE):
        return EXIT_USER_ERROR
    return EXIT_LOST if isinstance(error, RankLost) else EXIT_BUG


def report(error: BaseException) -> str:
    """Tell of ``error`` on stderr: one line for what the user can mend, the whole traceback for a bug of ours.

    Returns the line.
    """
    status = status_of(error)
    line = " ".join(str(error).split()) or type(error).__name__
    if status in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        line = RESULTS[status]
    if status == EXIT_BUG:
        traceback.print_exception(error)
    elif status != EXIT_CLOSED_PIPE:
        with contextlib.suppress(BrokenPipeError):
            print(f"error: {line}" if status in (EXIT_USER_ERROR, EXIT_LOST) else line, file=sys.stderr)
    return line


def worst(statuses: Sequence[int]) -> int:
    """The exit status of several jobs: a bug counts more than bad input, bad input more than success."""
    order = (EXIT_TERMINATED, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE, EXIT_BUG, EXIT_LOST, EXIT_USER_ERROR)
    return next((status for status in order if status in statuses), EXIT_OK)
