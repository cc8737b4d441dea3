"""The end of a process that is one of several."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def end_at_last(status: int) -> NoReturn:
    """End this process with ``status``, after what is registered for its exit.

    The interpreter is not unwound: a thread of torch's that comes back from C++ meanwhile would end the process with
    SIGABRT, whatever the run came to.
    """
    atexit._run_exitfuncs()
    end_now(status)


def end_now(status: int) -> NoReturn:
    """End this process with ``status`` and with what it wrote, and nothing else."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
