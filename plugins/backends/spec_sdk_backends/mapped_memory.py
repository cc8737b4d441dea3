"""Memory that processes of one machine map together, and how one waits there for another.

What a process writes, and then a number that says so, others see in this order: that holds on x86 alone, so elsewhere
there is no such memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import RankLost

PLACE = Path("/dev/shm")
LINE = 64
"""Bytes of a cache line: a number that one process writes and others look at has one of its own."""
_TOKEN_BYTES = 16
SPIN_S, YIELD_S = 0.0002, 0.02
"""How long a process that waits does nothing but look; and until when it lets others run in between."""
NAP_S, LONG_NAP_S = 0.0001, 0.001
"""How long it sleeps at a time then, and where it has waited for a hundred of the long ones."""


@dataclass(frozen=True)
class Patience:
    """``look``: called every ``look_s`` seconds by who waits; raises what ends the waiting. ``timeout_s``: after which
    RankLost is raised.
    """

    look: Callable[[], None]
    look_s: float
    timeout_s: float

    def wait(self, is_there: Callable[[], bool]) -> None:
        """Return when it is."""
        begin, look_at = time.monotonic(), self.look_s
        while not is_there():
            waited_s = time.monotonic() - begin
            if waited_s < SPIN_S:
                continue
            if waited_s < YIELD_S:
                os.sched_yield()
                continue
            time.sleep(NAP_S if waited_s < 100 * LONG_NAP_S else LONG_NAP_S)
            if waited_s > look_at:
                self.check(waited_s)
                look_at = waited_s + self.look_s

    def check(self, waited_s: float) -> None:
        """Raise what ends the waiting of who has waited so long."""
        self.look()
        if waited_s > self.timeout_s:
            raise RankLost(f"another process of this run stands still (nothing came for {self.timeout_s:.0f} s)")


def meet(
    say: Callable[[str, str], None], hear: Callable[[str], str], rank: int, size: int, nbytes: int, wanted: bool = True
) -> mmap.mmap | None:
    """So many bytes, zeros at first, of ``size`` processes, of which this is number ``rank``; None, on each of them,
    where one cannot reach it. All of them call it.

    ``say``, ``hear``: tell the others a text under a key, and wait for one; a rank's own is heard too. ``wanted``:
    whether this process wants it.
    """
    suits = wanted and _suits()
    with contextlib.ExitStack() as stack:
        file: Any = None
        if rank == 0:
            token = secrets.token_hex(_TOKEN_BYTES)
            with contextlib.suppress(OSError):
                file = stack.enter_context(_made(nbytes, token)) if suits else None
            say("place", "" if file is None else f"{file.name} {token}")
        elif place := hear("place"):
            name, token = place.rsplit(" ", 1)
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(name, "r+b", buffering=0))
                if not suits or os.pread(file.fileno(), len(token), nbytes) != token.encode():
                    file = None
        say(f"reached/{rank}", "" if file is None else "yes")
        # the file has no name any more when all have opened it: nothing is left of a run that is killed
        if not all([hear(f"reached/{other}") for other in range(size)]):
            return None
        return mmap.mmap(file.fileno(), nbytes)


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, in its own memory."""
    return x.flatten().view(torch.uint8)


@contextlib.contextmanager
def _made(nbytes: int, token: str) -> Iterator[Any]:
    """A file of zeros with the token behind them."""
    with tempfile.NamedTemporaryFile(dir=PLACE, prefix="spec-sdk-", buffering=0) as named:
        os.posix_fallocate(named.fileno(), 0, nbytes + len(token))
        os.pwrite(named.fileno(), token.encode(), nbytes)
        yield named


def _suits() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and hasattr(os, "sched_yield")
