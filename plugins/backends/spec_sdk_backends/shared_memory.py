"""Memory that the processes of one machine share, through which they exchange tensors: a short sum takes some 30 us,
over gloo's connections a millisecond (benchmarks/ranks.py).

A process writes its message beside the others' and then the number of the round; who has read that number may read the
message. Within a pass the native kernels do the same (``native/source/ranks.h``).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator

import torch

from spec_sdk.ranks import Ranks
from spec_sdk_backends.mapped_memory import LINE, Patience, bytes_of

CAPACITY = 2**20
"""Bytes of a message of a process; a longer one goes in pieces."""


class SharedMemory:
    """What ``size`` processes share, of which this is number ``rank``, in ``memory`` of :func:`nbytes_for` so many.

    ``number``: that of the last message.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, patience: Patience) -> None:
        self.rank, self.size, self.patience = rank, size, patience
        self.number = 0
        self._memory = memory
        self._number_of = memoryview(memory)[: size * LINE].cast("q")
        messages = torch.frombuffer(memory, dtype=torch.uint8, offset=_messages_at(size))
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
        for piece, messages_RB in self._pieces(bytes_of(x)):
            first, *others = messages_RB.view(x.dtype)
            part = bytes_of(total)[piece].view(x.dtype).copy_(first)
            for other in others:
                part += other
        return total

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' ``x``, contiguous and of one shape: [R, *x.shape]."""
        gathered = x.new_empty((self.size, x.numel()))
        for piece, messages_RB in self._pieces(bytes_of(x)):
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
            self.patience.wait(functools.partial(self._has_sent, rank))
        return messages_RB

    def _has_sent(self, rank: int) -> bool:
        return self._number_of[rank * LINE // 8] >= self.number


class SharingRanks(Ranks):
    """Ranks of one machine that may share memory."""

    memory: SharedMemory | None = None
    """Theirs; None where they share none."""


def nbytes_for(size: int) -> int:
    """Bytes of the memory of so many processes."""
    return _messages_at(size) + 2 * size * CAPACITY


def _messages_at(size: int) -> int:
    return -(-size * LINE // mmap.PAGESIZE) * mmap.PAGESIZE
