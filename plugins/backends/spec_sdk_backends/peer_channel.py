"""Messages between two processes through memory that both map: to each of them a ring of bytes.

A message is copied into the ring as far as there is room; the rest at a later call of the channel, when the other
process has read some: no process waits for another before it must, and a message may be longer than the ring.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

import torch

from spec_sdk.ranks import Wait
from spec_sdk_backends.mapped_memory import LINE, Patience, bytes_of

RING = 2**22
"""Bytes."""
NBYTES = mmap.PAGESIZE + 2 * RING
"""Of the memory: of each ring how many bytes were written and read, and both rings."""
_WRITTEN, _READ = 0, LINE // 8
"""Where these two are among a ring's numbers."""


class PeerChannel:
    """The end of process ``index``, 0 or 1, of the channel in ``memory``: :class:`spec_sdk.ranks.Peer` for tensors of
    the CPU.
    """

    def __init__(self, memory: mmap.mmap, index: int, patience: Patience) -> None:
        self._out, self._in = _Ring(memory, index), _Ring(memory, 1 - index)
        self._patience = patience
        # what of it is not in the ring yet, and what is still to be filled
        self._unsent: deque[torch.Tensor] = deque()
        self._expected: deque[torch.Tensor] = deque()
        self._asked = 0

    def send(self, x: torch.Tensor) -> None:
        self._unsent.append(bytes_of(x))
        _move(self._unsent, self._out.put)

    def flush(self) -> None:
        self._patience.wait(lambda: self._left()[0] == 0)

    def receive(self, x: torch.Tensor) -> Wait:
        self._expected.append(bytes_of(x))
        self._asked += 1
        message = self._asked
        return lambda: self._patience.wait(lambda: self._left()[1] <= self._asked - message)

    def _left(self) -> tuple[int, int]:
        """How many messages are left, unsent and expected, once all was moved that can be, both ways: the other process
        may wait for either.
        """
        _move(self._unsent, self._out.put)
        _move(self._expected, self._in.take)
        return len(self._unsent), len(self._expected)


class _Ring:
    """The bytes from process ``sender`` to the other one, and how many it wrote and that one read."""

    def __init__(self, memory: mmap.mmap, sender: int) -> None:
        self._numbers = memoryview(memory)[2 * sender * LINE : 2 * (sender + 1) * LINE].cast("q")
        self._ring_B = torch.frombuffer(memory, dtype=torch.uint8, offset=mmap.PAGESIZE + sender * RING, count=RING)

    def put(self, message_B: torch.Tensor) -> int:
        """Write what there is room for in one piece; how many bytes that are."""
        written = self._numbers[_WRITTEN]
        room, at = RING - (written - self._numbers[_READ]), written % RING
        count = min(room, RING - at, message_B.shape[0])
        self._ring_B[at : at + count] = message_B[:count]
        self._numbers[_WRITTEN] = written + count
        return count

    def take(self, message_B: torch.Tensor) -> int:
        """Fill it with what is there in one piece; how many bytes that are."""
        read = self._numbers[_READ]
        there, at = self._numbers[_WRITTEN] - read, read % RING
        count = min(there, RING - at, message_B.shape[0])
        message_B[:count] = self._ring_B[at : at + count]
        self._numbers[_READ] = read + count
        return count


def _move(messages: deque[torch.Tensor], move: Callable[[torch.Tensor], int]) -> None:
    """Move one after the other, as far as it goes; those that are through are gone from ``messages``."""
    while messages:
        count, length = move(messages[0]), messages[0].shape[0]
        messages[0] = messages[0][count:]
        if count == length:
            messages.popleft()
        elif not count:
            return
