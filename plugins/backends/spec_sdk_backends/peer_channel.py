"""Messages between two processes through memory that both map: to each of them a ring of bytes.

A message is copied into the ring as far as there is room; the rest at a later call of the channel, when the other
process has read some: no process waits for another before it must, and a message may be longer than the ring.
"""

from __future__ import annotations

import functools
import mmap
from collections import deque

import torch

from spec_sdk.ranks import Wait
from spec_sdk_backends.mapped_memory import LINE, Patience, bytes_of

RING = 2**22
"""Bytes."""
NBYTES = mmap.PAGESIZE + 2 * RING
"""Of the memory: of each ring how many bytes were written and read, and both rings."""


class PeerChannel:
    """The end of process ``index``, 0 or 1, of the channel in ``memory``: :class:`spec_sdk.ranks.Peer` for tensors of
    the CPU.
    """

    def __init__(self, memory: mmap.mmap, index: int, patience: Patience) -> None:
        self._numbers = memoryview(memory)[: 4 * LINE].cast("q")
        rings_2B = torch.frombuffer(memory, dtype=torch.uint8, offset=mmap.PAGESIZE).view(2, RING)
        self._out = _Ring(index)
        self._in = _Ring(1 - index)
        self._out_B, self._in_B = rings_2B[index], rings_2B[1 - index]
        self._patience = patience
        # what of it is not in the ring yet, and what is still to be filled
        self._unsent: deque[torch.Tensor] = deque()
        self._expected: deque[torch.Tensor] = deque()
        self._asked = self._received = 0

    def send(self, x: torch.Tensor) -> None:
        self._unsent.append(bytes_of(x))
        self._push()

    def flush(self) -> None:
        self._patience.wait(lambda: self._moved() and not self._unsent)

    def receive(self, x: torch.Tensor) -> Wait:
        self._expected.append(bytes_of(x))
        self._asked += 1
        return functools.partial(self._wait_for, self._asked)

    def _wait_for(self, message: int) -> None:
        self._patience.wait(lambda: self._moved() and self._received >= message)

    def _moved(self) -> bool:
        """Move what can be moved, both ways: the other process may wait for either."""
        self._push()
        self._pull()
        return True

    def _push(self) -> None:
        ring, numbers = self._out, self._numbers
        while self._unsent:
            written = numbers[ring.written]
            room = RING - (written - numbers[ring.read])
            if not room:
                return
            message_B, at = self._unsent[0], written % RING
            count = min(room, RING - at, message_B.shape[0])
            self._out_B[at : at + count] = message_B[:count]
            numbers[ring.written] = written + count
            self._unsent[0] = message_B[count:]
            if count == message_B.shape[0]:
                self._unsent.popleft()

    def _pull(self) -> None:
        ring, numbers = self._in, self._numbers
        while self._expected:
            read, message_B = numbers[ring.read], self._expected[0]
            there, at = numbers[ring.written] - read, read % RING
            if not there and message_B.shape[0]:
                return
            count = min(there, RING - at, message_B.shape[0])
            message_B[:count] = self._in_B[at : at + count]
            numbers[ring.read] = read + count
            self._expected[0] = message_B[count:]
            if count == message_B.shape[0]:
                self._expected.popleft()
                self._received += 1


class _Ring:
    """Where the numbers of a ring are: of the bytes ``written`` to it, and ``read``."""

    def __init__(self, sender: int) -> None:
        self.written = 2 * sender * LINE // 8
        self.read = (2 * sender + 1) * LINE // 8
