"""Does a task run, say how it ended, and leave its surroundings as they were?"""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec_sdk.contracts import Task
from spec_sdk.errors import UserError
from spec_sdk.testing.check import Check, run_checks

STATUSES = range(256)


def check_task(make_task: Callable[[], Task], settings: Any) -> None:
    """Raise AssertionError unless the tasks that ``make_task`` makes, a new one per call, run with ``settings``.

    ``settings`` are what :func:`spec_sdk.config.composing.settings_for` returns; the task is carried out twice, in an
    empty directory. It returns an exit status (a whole number from 0 to 255), the same both times, or refuses the
    settings by a UserError of one line. What it prints to stdout is dropped. It changes no setting, and writes nowhere
    in that directory but into ``settings.output_dir``.
    """
    run_checks(task_checks(make_task, settings))


def task_checks(make_task: Callable[[], Task], settings: Any) -> list[Check]:
    """The checks of :func:`check_task`, one by one."""
    statuses: list[int | str] = []

    def first() -> str:
        statuses.append(_run(make_task(), settings))
        ended = statuses[0]
        return f"exit status {ended}" if isinstance(ended, int) else f"refuses these settings: {ended}"

    def again() -> None:
        ended = _run(make_task(), settings)
        assert not statuses or ended == statuses[0], f"it ended with {statuses[0]!r} and then with {ended!r}"

    return [
        Check("ends with an exit status or one line, writes to its output directory alone", first),
        Check("ends the same when it is run again", again),
    ]


def _run(task: Task, settings: Any) -> int | str:
    """The exit status, or the one line by which it refuses the settings."""
    before = copy.deepcopy(dict(settings.resolved))
    with (
        tempfile.TemporaryDirectory(prefix="spec-sdk-check-") as name,
        contextlib.chdir(name),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        here = Path(name)
        try:
            status = task.run(settings)
        except UserError as error:
            line = str(error)
            assert "\n" not in line and line.strip(), f"it refuses the settings, and not in one line: {line!r}"
            return line
        except SystemExit as error:
            raise AssertionError(
                f"it called sys.exit({error.code!r}), where it is to return its exit status"
            ) from error
        finally:
            assert dict(settings.resolved) == before, "it changed the run's settings"
            allowed = here / settings.output_dir
            left = [path for path in here.rglob("*") if path.is_file() and allowed not in path.parents]
            assert not left, f"it wrote {left[0].relative_to(here)}, which is not in the run's output directory"
    assert isinstance(status, int) and not isinstance(status, bool) and status in STATUSES, (
        f"it returned {status!r}, which is no exit status: a whole number from 0 to 255"
    )
    return status
