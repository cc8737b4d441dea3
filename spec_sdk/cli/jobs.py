"""One job of the command line: a composed config made into settings, its task run, its outcome kept."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig

from spec_sdk.cli.plugin_errors import plugin_error, tracebacks_wanted
from spec_sdk.cli.starting import started, starting
from spec_sdk.config.chosen_backend import backend_choice
from spec_sdk.config.composing import settings_of
from spec_sdk.errors import EndedElsewhere, PluginFault, RankLost, UserError, message_of
from spec_sdk.held_signals import takes_handlers
from spec_sdk.ranks import launched_processes, launched_rank
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.version import __version__

EXIT_OK, EXIT_BUG, EXIT_USER_ERROR, EXIT_LOST = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_CLOSED_PIPE, EXIT_TERMINATED = 130, 141, 143
RESULTS = {
    EXIT_BUG: "bug",
    EXIT_USER_ERROR: "error",
    EXIT_LOST: "lost a process",
    EXIT_INTERRUPTED: "interrupted",
    EXIT_TERMINATED: "terminated",
    EXIT_OK: "ok",
}
"""What a sweep's table says of a job."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems and ``timeout`` send it: ends a run as Ctrl-C does, with the text so far kept."""


def end_on_sigterm() -> threading.Event:
    """Have SIGTERM raise :class:`Terminated`. Does nothing outside the main thread, where no handler can be set.

    Returns an event that is set when the signal comes, for where an exception may be lost.
    """
    came = threading.Event()

    def terminate(*_: object) -> NoReturn:
        came.set()
        raise Terminated

    if takes_handlers():
        signal.signal(signal.SIGTERM, terminate)
    return came


def hear_signals() -> None:
    """From now on Ctrl-C and SIGTERM raise, so that a run keeps what it has; before, they end the command at once."""
    if starting():
        started()
        end_on_sigterm()


def run_task(
    config: DictConfig,
    overrides: Sequence[str],
    directory: Path | None = None,
    hear: Callable[[], None] = hear_signals,
) -> int:
    """Run the task that ``config``, composed from ``overrides``, chooses and return its exit status.

    ``directory`` is where a job of a sweep writes; otherwise ``output_dir`` or the default is. ``hear`` is called where
    there begins to be something that a signal must not lose. Raises UserError for bad input, and whatever the task
    raises.
    """
    settings = replace(settings_of(config), overrides=tuple(overrides))
    if directory is not None:
        settings = replace(settings, output_dir=directory)
    elif launched_rank() == 0:
        # what follows imports torch, which takes seconds
        say(f"spec-sdk {__version__}: {_in_words(settings)}")

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
    _refuse_unheard(make, settings)
    if make.computes and directory is None and launched_rank() == 0 and (choice := backend_choice(settings)):
        say(choice)
    if make.computes:
        # the longest import of all, before there is anything that a signal must not end
        importlib.import_module("spec_sdk.pipeline")
    hear()
    status: object = make(task_config).run(settings)
    if not isinstance(status, int) or isinstance(status, bool):
        raise PluginFault(f"task {make.name!r}: its run returned {status!r}, which is no exit status")
    return status


def _refuse_unheard(make: Any, settings: Settings) -> None:
    """Raise UserError for an option that the task would pass over."""
    from spec_sdk.compiled_constraints import NOTHING

    asked = {
        "compare": settings.compare,
        "constraint": settings.constraint != NOTHING,
        "error_bounds": settings.error_bounds,
        **{name: getattr(settings, name) is not None for name in ("prompt", "prompt_file", "audio")},
    }
    for name in make.without:
        if asked[name]:
            raise UserError(f"{name}: task={make.name} does nothing with it; leave it out")


def _in_words(settings: Settings) -> str:
    task = str(settings.task.get("name"))
    return f"pipeline {settings.pipeline.in_words}" if task == "generate" else f"task {task}"


@functools.cache
def _warn_of_problems() -> None:
    """Tell of packages that could not be loaded: once, however many jobs a sweep has."""
    from spec_sdk.registry import Registry

    for problem in Registry.discover().problems:
        print(f"warning: {problem}", file=sys.stderr)


def status_of(error: BaseException) -> int:
    """The exit status that an exception means."""
    if isinstance(error, EndedElsewhere):
        return error.status
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
    """Tell of ``error`` on stderr: one line for what can be mended, the whole traceback for a bug of ours.

    A plugin that returned what cannot be used is named in a line, and so is one of another package that raised
    something; HYDRA_FULL_ERROR=1 shows the traceback of that.

    Returns the line.
    """
    status = status_of(error)
    line = message_of(error)
    if status in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        line = RESULTS[status]
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        line = f"no space left on the device{f' for {error.filename}' if error.filename else ''}"
    raised = status == EXIT_BUG and not isinstance(error, PluginFault)
    of_plugin = plugin_error(error) if raised else None
    line = of_plugin or line
    if raised and (of_plugin is None or tracebacks_wanted()):
        traceback.print_exception(error)
    elif status != EXIT_CLOSED_PIPE:
        with contextlib.suppress(BrokenPipeError):
            told = status in (EXIT_USER_ERROR, EXIT_LOST, EXIT_BUG)
            print(f"error: {line}" if told else line, file=sys.stderr)
    return line


def worst(statuses: Sequence[int]) -> int:
    """The exit status of several jobs: a bug counts more than bad input, bad input more than success."""
    order = (EXIT_TERMINATED, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE, EXIT_BUG, EXIT_LOST, EXIT_USER_ERROR)
    return next((status for status in order if status in statuses), EXIT_OK)
