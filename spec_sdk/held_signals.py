"""SIGTERM while a run keeps what it has, or tells why it ends: a launcher sends it to all when one process is lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


def takes_handlers() -> bool:
    """Whether this is the main thread: in others no handler can be set."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def sigterm_held_back() -> Iterator[None]:
    """What is done inside is done to its end. A SIGTERM that comes meanwhile takes effect behind it; inside a
    ``finally`` that an exception came to it has none, since the run ends anyway, and by that exception.

    Does nothing outside the main thread.
    """
    if not takes_handlers():
        yield
        return
    ending, came = sys.exc_info()[1] is not None, False

    def hold(*_: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGTERM, hold)
    try:
        yield
    finally:
        # None: a handler that was not set from Python
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
    if came and not ending:
        signal.raise_signal(signal.SIGTERM)


def ignore_sigterm() -> None:
    """For a process that ends anyway, and has yet to say why. Does nothing outside the main thread."""
    if takes_handlers():
        # not SIG_IGN, which programs that are started from here would begin with
        signal.signal(signal.SIGTERM, lambda *_: None)
