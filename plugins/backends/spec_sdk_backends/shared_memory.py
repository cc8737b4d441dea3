"""Memory that the processes of one machine share, through which they exchange tensors: a short sum takes some 30 us,
over gloo's connections a millisecond (benchmarks/ranks.py).

A process writes its message beside the others' and then the number of the round; who has read that number may read the
message, since stores are seen in their order. That holds on x86 alone, so others have no such memory.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from spec_sdk.errors import RankLost
from spec_sdk.ranks import Ranks

PLACE = Path("/dev/shm")
CAPACITY = 2**20
"""Bytes of a message of a process; a longer one goes in pieces."""
LINE = 64
"""Bytes of a cache line: a number of a round has one of its own."""
_TOKEN_BYTES = 16
SPIN_S, YIELD_S = 0.0002, 0.02
"""How long a process that waits does nothing but look; and until when it lets others run in between."""
NAP_S, LONG_NAP_S = 0.0001, 0.001
"""How long it sleeps at a time then, and where it has waited for a hundred of the long ones."""


class SharedMemory:
    """The memory of ``size`` processes, of which this is number ``rank``; made by :func:`meet`.

    ``look``: called every ``look_s`` seconds by who waits; raises what ends the waiting. ``timeout_s``: after which
    RankLost is raised. ``number``: that of the last message.
    """

    def __init__(
        self, file: Any, rank: int, size: int, look: Callable[[], None], look_s: float, timeout_s: float
    ) -> None:
        self.rank, self.size, self.look_s = rank, size, look_s
        self._look, self._timeout_s = look, timeout_s
        self._memory = mmap.mmap(file.fileno(), _bytes(size))
        self.number = 0
        self._number_of = memoryview(self._memory)[: size * LINE].cast("q")
        messages = torch.frombuffer(self._memory, dtype=torch.uint8, offset=_messages_at(size))
        self._messages_2RB = messages.view(2, size, CAPACITY)

    @property
    def addresses(self) -> tuple[int, int]:
        """Where the numbers of the ranks' last messages are, a cache line apart, and where the messages [2, R,
        CAPACITY].
        """
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), self._messages_2RB.data_ptr()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x``, contiguous and of one shape, in the ranks' order: all have the same."""
        total = torch.empty_like(x)
        for piece, messages_RB in self._pieces(_bytes_of(x)):
            first, *others = messages_RB.view(x.dtype)
            part = _bytes_of(total)[piece].view(x.dtype).copy_(first)
            for other in others:
                part += other
        return total

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' ``x``, contiguous and of one shape: [R, *x.shape]."""
        gathered = x.new_empty((self.size, x.numel()))
        for piece, messages_RB in self._pieces(_bytes_of(x)):
            gathered.view(torch.uint8)[:, piece] = messages_RB
        return gathered.view(self.size, *x.shape)

    def of_first(self, message_B: torch.Tensor) -> torch.Tensor:
        """The first rank's bytes of a message that is as long on all of them."""
        for piece, messages_RB in self._pieces(message_B, all_send=False):
            message_B[piece] = messages_RB[0]
        return message_B

    def _pieces(self, mine_B: torch.Tensor, all_send: bool = True) -> Iterator[tuple[slice, torch.Tensor]]:
        """Every rank's bytes like ``mine_B`` by pieces that fit: where a piece is, and the ranks' own [R, bytes], to be
        read as :meth:`exchange` says. ``all_send``: not the first rank alone.
        """
        for at in range(0, mine_B.shape[0], CAPACITY):
            piece = slice(at, min(at + CAPACITY, mine_B.shape[0]))
            sent_B = mine_B[piece] if all_send or self.rank == 0 else mine_B[:0]
            yield piece, self.exchange(sent_B)[:, : piece.stop - piece.start]

    def exchange(self, mine_B: torch.Tensor) -> torch.Tensor:
        """Every rank's message of this round, [R, CAPACITY] bytes, in the memory itself: to be read before the next
        round. ``mine_B``: this rank's bytes, at most CAPACITY. All ranks take part.

        Two rounds have memory of their own: who writes the next but one has seen that all others read this one.
        """
        self.number += 1
        messages_RB = self._messages_2RB[self.number % 2]
        messages_RB[self.rank, : mine_B.shape[0]] = mine_B
        self._number_of[self.rank * LINE // 8] = self.number
        for rank in range(self.size):
            if self._number_of[rank * LINE // 8] < self.number:
                self._wait(rank)
        return messages_RB

    def look(self, waited_s: float) -> None:
        """Raise what ends the waiting of who has waited so long."""
        self._look()
        if waited_s > self._timeout_s:
            raise RankLost(f"another process of this run stands still (nothing came for {self._timeout_s:.0f} s)")

    def _wait(self, rank: int) -> None:
        place, begin = rank * LINE // 8, time.monotonic()
        look_at = self.look_s
        while self._number_of[place] < self.number:
            waited_s = time.monotonic() - begin
            if waited_s < SPIN_S:
                continue
            if waited_s < YIELD_S:
                os.sched_yield()
                continue
            time.sleep(NAP_S if waited_s < 100 * LONG_NAP_S else LONG_NAP_S)
            if waited_s > look_at:
                self.look(waited_s)
                look_at = waited_s + self.look_s


class SharingRanks(Ranks):
    """Ranks of one machine that may share memory."""

    memory: SharedMemory | None = None
    """Theirs; None where they share none."""


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


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().view(torch.uint8)


def _suits() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and hasattr(os, "sched_yield")


def _messages_at(size: int) -> int:
    return -(-size * LINE // mmap.PAGESIZE) * mmap.PAGESIZE


def _bytes(size: int) -> int:
    return _messages_at(size) + 2 * size * CAPACITY
