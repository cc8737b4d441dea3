"""The end of a sweep that is interrupted while jobs run in processes of their own: they keep what they have first.

A launcher that gets the interrupt kills those processes at once. Sweep and jobs agree on a file in the sweep's
directory: a job holds a shared lock on it from where it has something to keep, and looks whether the number of a signal
stands in it; the sweep's process writes that, and waits until nobody holds the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from spec_sdk.cli.jobs import Terminated, hear_signals
from spec_sdk.held_signals import takes_handlers

ENDING = ".ending"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.2
WAITING = b"the jobs that run keep what they have; once more to end at once\n"


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep that writes into ``directory`` is ended. ``process``: the sweep's own."""

    directory: Path
    process: int = field(default_factory=os.getpid)

    @contextlib.contextmanager
    def heard(self, sheltered: bool) -> Iterator[None]:
        """In the sweep's process: what Ctrl-C and SIGTERM raise is raised once the jobs have kept what they have, and
        at once when one comes again. Does nothing outside the main thread.

        ``sheltered``: processes that are started meanwhile begin with both signals blocked. A terminal sends Ctrl-C to
        all of them, and one that idles would end by it, for which joblib kills the others. This is for launchers that
        wait in intervals: a wait without an end would not be interrupted.
        """
        if not takes_handlers():
            yield
            return
        self._path.write_bytes(b"")
        before = {number: signal.getsignal(number) for number in SIGNALS}
        taken = {number: handler for number, handler in before.items() if callable(handler)}

        def end(number: int, frame: FrameType | None) -> None:
            if not self.told():
                self._path.write_text(str(number))
                self._wait()
            taken[signal.Signals(number)](number, frame)

        try:
            for number in taken:
                signal.signal(number, end)
            with _shelter() if sheltered else contextlib.nullcontext():
                yield
        finally:
            for number, handler in taken.items():
                signal.signal(number, handler)
            self._path.unlink(missing_ok=True)

    def told(self) -> int:
        """The signal by which the sweep ends; 0 while it goes on."""
        try:
            return int(self._path.read_bytes() or 0)
        except FileNotFoundError:
            return signal.SIGTERM

    def of_job(self) -> JobEnd:
        """For a job, in whichever process."""
        return JobEnd(self)

    def opened(self) -> BinaryIO:
        """The file that is locked. Raises OSError."""
        return self._path.open("rb")

    @property
    def _path(self) -> Path:
        return self.directory / ENDING

    def _wait(self) -> None:
        """Until no job has anything left to keep."""
        waits = False
        with self.opened() as file:
            while not _locked(file):
                if not waits:
                    # a print may have been interrupted just now
                    os.write(2, WAITING)
                waits = True
                time.sleep(LOOK_S)


class JobEnd:
    """Entered around a job. In a process of its own it ends by what ends the sweep, from :meth:`hear` on."""

    def __init__(self, end: SweepEnd) -> None:
        self._end = end
        self._own = os.getpid() != end.process
        self._raised = False
        self._over = threading.Event()
        self._undo = contextlib.ExitStack()

    @property
    def ended(self) -> bool:
        """Whether the sweep ends: a job that had not begun must not."""
        return self._own and bool(self._end.told())

    def hear(self) -> None:
        """From now on there is something to keep. Raises KeyboardInterrupt or Terminated if the sweep ends already."""
        if not self._own:
            hear_signals()
        elif takes_handlers():
            file = self._undo.enter_context(self._end.opened())
            with contextlib.suppress(OSError):  # a file system that knows no locks: nobody waits for this job
                fcntl.flock(file, fcntl.LOCK_SH)
            self._undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, self._raise))
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            self._undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
            threading.Thread(target=self._look, args=(threading.get_ident(),), daemon=True).start()
            if self.ended:
                self._raise()

    def deaf(self) -> None:
        """The job is over; what comes now has nothing to end."""
        self._over.set()

    def __enter__(self) -> JobEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.deaf()
        self._undo.close()

    def _look(self, thread: int) -> None:
        while not self._over.wait(LOOK_S):
            if self._end.told():
                signal.pthread_kill(thread, signal.SIGTERM)
                return

    def _raise(self, *_: object) -> None:
        if self._raised or self._over.is_set():
            return
        self._raised = True
        raise KeyboardInterrupt if self._end.told() == signal.SIGINT else Terminated


@contextlib.contextmanager
def _shelter() -> Iterator[None]:
    """Both signals are blocked in this thread, and so in what it starts; another one takes them, and Python's handlers
    run in the main thread all the same.
    """
    # it unblocks them once it has started, which joblib has it do between the first processes
    resource_tracker.ensure_running()
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        done.set()


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # there are no locks
    return True
