"""Memory that the processes of one machine share, through which they exchange small tensors: a sum takes some 30 us,
over gloo's connections a millisecond (benchmarks/ranks.py).

A process writes its message beside the others' and then the number of the round; who has read that number may read the
message, since stores are seen in their order. That holds on x86 alone, so others have no such memory.
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
from pathlib import Path
from typing import Any

import torch

PLACE = Path("/dev/shm")
CAPACITY = 2**20
"""Bytes of the longest message of a process."""
_LINE = 64
"""Bytes of a cache line: a number of a round has one of its own."""
_TOKEN_BYTES = 16
SPIN_S, YIELD_S = 0.0002, 0.02
"""How long a process that waits does nothing but look; and until when it lets others run in between."""
NAP_S, LONG_NAP_S = 0.0001, 0.001
"""How long it sleeps at a time then, and where it has waited for a hundred of the long ones."""


class SharedMemory:
    """The memory of ``size`` processes, of which this is number ``rank``; made by :func:`meet`.

    ``look``: called now and then by who waits; raises what ends the waiting. ``timeout_s``: after which RuntimeError is
    raised.
    """

    def __init__(
        self, file: Any, rank: int, size: int, look: Callable[[], None], look_s: float, timeout_s: float
    ) -> None:
        self._rank, self._size = rank, size
        self._look, self._look_s, self._timeout_s = look, look_s, timeout_s
        memory = mmap.mmap(file.fileno(), _bytes(size))
        self._round = 0
        self._round_of = memoryview(memory)[: size * _LINE].cast("q")
        messages = torch.frombuffer(memory, dtype=torch.uint8, offset=_messages_at(size))
        self._messages_2RB = messages.view(2, size, CAPACITY)

    def exchange(self, mine_B: torch.Tensor) -> torch.Tensor:
        """Every rank's message of this round, [R, CAPACITY] bytes, in the memory itself: to be read before the next
        round. ``mine_B``: this rank's bytes, at most CAPACITY. All ranks take part.

        Two rounds have memory of their own: who writes the next but one has seen that all others read this one.
        """
        self._round += 1
        messages_RB = self._messages_2RB[self._round % 2]
        messages_RB[self._rank, : mine_B.shape[0]] = mine_B
        self._round_of[self._rank * _LINE // 8] = self._round
        for rank in range(self._size):
            if self._round_of[rank * _LINE // 8] < self._round:
                self._wait(rank)
        return messages_RB

    def _wait(self, rank: int) -> None:
        place, begin = rank * _LINE // 8, time.monotonic()
        look_at = begin + self._look_s
        while self._round_of[place] < self._round:
            now = time.monotonic()
            if now - begin < SPIN_S:
                continue
            if now - begin < YIELD_S:
                os.sched_yield()
                continue
            time.sleep(NAP_S if now - begin < 100 * LONG_NAP_S else LONG_NAP_S)
            if now > look_at:
                self._look()
                look_at = now + self._look_s
            if now - begin > self._timeout_s:
                raise RuntimeError(f"nothing came for {self._timeout_s:.0f} s")


def meet(
    say: Callable[[str, str], None],
    hear: Callable[[str], str],
    rank: int,
    size: int,
    look: Callable[[], None],
    look_s: float,
    timeout_s: float,
) -> SharedMemory | None:
    """The memory of all ranks; None, on each of them, where one cannot reach it. All ranks call it.

    ``say``, ``hear``: tell the others a text under a key, and wait for one; a rank's own is heard too.
    """
    with contextlib.ExitStack() as stack:
        file: Any = None
        if rank == 0:
            token = secrets.token_hex(_TOKEN_BYTES)
            with contextlib.suppress(OSError):
                file = stack.enter_context(_made(size, token)) if _suits() else None
            say("place", "" if file is None else f"{file.name} {token}")
        elif place := hear("place"):
            name, token = place.rsplit(" ", 1)
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(name, "r+b", buffering=0))
                if not _suits() or os.pread(file.fileno(), len(token), _bytes(size)) != token.encode():
                    file = None
        say(f"reached/{rank}", "" if file is None else "yes")
        # the file has no name any more when all have opened it: nothing is left of a run that is killed
        if not all([hear(f"reached/{other}") for other in range(size)]):
            return None
        return SharedMemory(file, rank, size, look, look_s, timeout_s)


@contextlib.contextmanager
def _made(size: int, token: str) -> Iterator[Any]:
    """A file of zeros for so many ranks, with the token behind them."""
    with tempfile.NamedTemporaryFile(dir=PLACE, prefix="spec-sdk-", buffering=0) as named:
        os.posix_fallocate(named.fileno(), 0, _bytes(size) + len(token))
        os.pwrite(named.fileno(), token.encode(), _bytes(size))
        yield named


def _suits() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and hasattr(os, "sched_yield")


def _messages_at(size: int) -> int:
    return -(-size * _LINE // mmap.PAGESIZE) * mmap.PAGESIZE


def _bytes(size: int) -> int:
    return _messages_at(size) + 2 * size * CAPACITY
