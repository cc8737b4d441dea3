"""Ctrl-C and SIGTERM before a run has anything to keep: they end the process at once.

An exception that a signal's handler raises while modules are imported may get lost, in C code and in hooks that
importers call, or come out as another one; the run would go on as if nobody had asked it to end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

WORDS = {signal.SIGINT: b"interrupted\n", signal.SIGTERM: b"terminated\n"}


def end_at_once() -> None:
    """From now on a signal ends this process, which must be a command of its own, until :func:`started`.

    What is ignored stays ignored, as ``nohup`` and a shell's ``&`` have it.
    """
    for number in WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def open_closed_streams() -> None:
    """Where stdout or stderr were closed by whoever started the command (``>&-``), what is written there is lost.

    Python has None for them, and the next file that is opened gets their descriptor: what C code tells would be in it.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if not _is_open(descriptor):
                os.dup2(null, descriptor)
                os.close(null)
                null = descriptor
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "w", encoding="utf-8", closefd=False))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def starting() -> bool:
    """Whether signals end this process at once."""
    return signal.getsignal(signal.SIGINT) is _leave


def started() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that a run keeps what it has."""
    if starting():
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    """Whether Ctrl-C came since: an exception that is raised while C calls Python is lost."""
    return _interrupted.is_set()


_interrupted = threading.Event()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, WORDS[signal.Signals(number)])
    os._exit(128 + number)
