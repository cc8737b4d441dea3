"""What one recurrent layer keeps of one request: a state, and the rows that came after it.

A state cannot be taken back, so it stays some tokens behind: the rows of committed tokens after it, and of a tree's
nodes, are kept beside it as K and V are in a KV cache, and what a pass rejects costs nothing. Old rows are folded into
the state step by step. Which state a row goes on from hangs on its position alone (:func:`tokens_in_state`), and on no
pass, so that kernels can give a row the same bits in every pass. Copies of earlier states (:class:`Snapshot`) are what
a later request goes on from that has only the beginning of the text in common.

Legend: R rows that there is room for, K rows before the state, … the dims of what a row keeps, H heads, D key dim, V
value dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.kv_cache import moves_of
from spec_sdk.ops.gated_delta import folded_state

STEP = 32
"""Rows that are folded into a state at a time."""

BEHIND = 64
"""Tokens at least between a row and the state that it goes on from: nodes of trees so deep have theirs."""

SNAPSHOT_EVERY = 512
"""Tokens between the snapshots of a text."""

MOST_SNAPSHOTS = 3
"""Snapshots of a request, beside the state itself."""


def tokens_in_state(position: int) -> int:
    """How many tokens are in the state that the row at this position goes on from.

    >>> [tokens_in_state(position) for position in (0, 95, 96, 127, 128)]
    [0, 0, 32, 32, 64]
    """
    return max(0, (position - BEHIND) // STEP * STEP)


@dataclass(frozen=True)
class Memory:
    """S [H, V, D], and the sum Γ [H] of log decays along the text up to it, in float64."""

    state_HVD: torch.Tensor
    path_H: torch.Tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.state_HVD, self.path_H))

    def folded(self, k_GPD: torch.Tensor, u_HPV: torch.Tensor, path_HP: torch.Tensor) -> Memory:
        """That behind P more rows of a chain."""
        state_HVD = folded_state(self.state_HVD, self.path_H, k_GPD, u_HPV, path_HP)
        return Memory(state_HVD, path_HP[:, -1].clone())

    def empty(self) -> Memory:
        """That before a text."""
        return Memory(torch.zeros_like(self.state_HVD), torch.zeros_like(self.path_H))


@dataclass(frozen=True)
class Snapshot:
    """What is kept of the first ``length`` tokens: K rows of every kind [..., K, ·], and a memory if there is one."""

    length: int
    rows: tuple[torch.Tensor, ...]
    memory: Memory | None

    @property
    def nbytes(self) -> int:
        rows = sum(tensor.numel() * tensor.element_size() for tensor in self.rows)
        return rows + (0 if self.memory is None else self.memory.nbytes)


class RecurrentState:
    """The rows of one layer and request, from ``lead`` tokens before the state on, which stands behind ``length``
    tokens.

    ``rows``: a tensor [..., R, ·] of every kind of number that a row keeps, zero before the text begins. The row of
    cache column c is number ``c - length + lead`` in each of them. With a ``memory`` these are x, k, u and Γ; else x
    alone. ``further``: memories of the next steps, of which a tree's deeper nodes go on from.
    """

    def __init__(self, lead: int, rows: Sequence[torch.Tensor], memory: Memory | None = None) -> None:
        self.length = 0
        self.lead = lead
        self.rows = tuple(rows)
        self.memory = memory
        self.takes_snapshots = True
        """If not, a text is gone on from only where its rows have the states that they have when all of it is fed."""
        self.further: list[Memory] = []
        self.snapshots: list[Snapshot] = []
        self._marked: int | None = None
        self._end = 0

    @property
    def nbytes(self) -> int:
        """Bytes of states, rows and snapshots."""
        rows = sum(tensor.numel() * tensor.element_size() for tensor in self.rows)
        memories = [*self.further, *([] if self.memory is None else [self.memory])]
        snapshots = sum(snapshot.nbytes for snapshot in self.snapshots)
        return rows + sum(memory.nbytes for memory in memories) + snapshots

    def index(self, column: int) -> int:
        """Where the row of a cache column lies."""
        return column - self.length + self.lead

    def go_on(self, prefix: int, end: int) -> None:
        """Fold what is old behind ``prefix`` committed tokens, and have room for rows up to column ``end``."""
        self.settle(prefix)
        self.reserve(end)

    def reserve(self, end: int) -> None:
        """Have room for the rows of columns before ``end``."""
        self._end = end
        needed, there = self.index(end), self.rows[0].shape[-2]
        if needed > there:
            self.rows = tuple(_longer(tensor, max(needed, there + there // 2)) for tensor in self.rows)

    def write(self, kind: int, column: int, new: torch.Tensor) -> None:
        """Store new rows [..., N, ·] of one kind, from a column on."""
        first = self.index(column)
        self.rows[kind][..., first : first + new.shape[-2], :] = new

    def until(self, kind: int, column: int) -> torch.Tensor:
        """Rows of one kind behind the state, up to a column [..., ·, ·]."""
        return self.rows[kind][..., self.lead : self.index(column), :]

    def move(self, prefix: int, path: Sequence[int]) -> None:
        """The rows ``path`` (offsets from the prefix, increasing) come right behind the prefix."""
        for move in moves_of(0, self.index(prefix), path):
            for tensor in self.rows:
                kept = tensor[..., move.source : move.source + move.count, :].clone()
                tensor[..., move.target : move.target + move.count, :] = kept

    def settle(self, prefix: int) -> None:
        """Fold the rows that those behind ``prefix`` tokens, all of them committed, have in their state. Rows that
        nobody wrote count as zero, as K and V in a KV cache do.

        Raises RuntimeError for a prefix that the state is beyond.
        """
        if prefix < self.length:
            raise RuntimeError(f"a recurrent state of {self.length} tokens cannot go on behind {prefix}")
        # of a pass that was interrupted
        del self.further[max(0, prefix - self.length) // STEP :]
        wanted = max(self.length, tokens_in_state(prefix))
        if self.index(prefix) > self.rows[0].shape[-2]:
            # nobody feeds a model so: passes of a length are measured so
            self.length = wanted
        if steps := (wanted - self.length) // STEP:
            self._fold(steps)

    def look_ahead(self, prefix: int, position: int) -> None:
        """Have the ``further`` memories that rows up to ``position`` behind ``prefix`` tokens go on from."""
        there = min(tokens_in_state(position), prefix // STEP * STEP)
        while self.memory is not None and self.length + STEP * len(self.further) < there:
            before = self.further[-1] if self.further else self.memory
            self.further.append(self.folded(before, STEP * len(self.further)))

    def folded(self, memory: Memory, first: int) -> Memory:
        """That behind one more step of rows, which are the ones from number ``first`` behind the state on."""
        _, k_GPD, u_HPV, path_HP1 = (
            tensor[..., self.lead + first : self.lead + first + STEP, :] for tensor in self.rows
        )
        return memory.folded(k_GPD, u_HPV, path_HP1[..., 0])

    def mark(self) -> None:
        """Remember this state when it is left: the next request often goes on from here."""
        self._marked = self.length

    def keeps(self, length: int) -> int:
        """How many of the first ``length`` tokens can be gone on from, all of them having been fed."""
        if length >= self.length and (self.takes_snapshots or tokens_in_state(length) >= self.length):
            return length
        return max((snapshot.length for snapshot in self.snapshots if snapshot.length <= length), default=0)

    def roll_back(self, length: int) -> None:
        """Go back to ``length`` tokens, which :meth:`keeps` said can be gone on from."""
        del self.further[max(0, length - self.length) // STEP :]
        if length >= self.length and length:
            return
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.length <= length]
        found = self.snapshots.pop() if length else None
        assert found is None or found.length == length, f"no snapshot of {length} tokens"
        for i, tensor in enumerate(self.rows):
            tensor.zero_()
            if found is not None:
                tensor[..., : self.lead, :] = found.rows[i]
        if self.memory is not None:
            self.memory = self.memory.empty() if found is None else found.memory
        self.length = length
        self._marked = length or None

    def drop_rows(self, count: int) -> None:
        """The rows behind the first ``count`` of each kind move up."""
        reach = self.reach(count)
        for tensor in self.rows:
            tensor[..., : reach - count, :] = tensor[..., count:reach, :].clone()

    def reach(self, count: int) -> int:
        """How many rows mean something before the first ``count`` are dropped: to the end of the last pass."""
        return min(max(self.index(self._end), self.lead + count), self.rows[0].shape[-2])

    def _fold(self, steps: int) -> None:
        """Fold so many steps of rows into the state."""
        for step in range(steps):
            length = self.length + step * STEP
            if length and self.takes_snapshots and (length % SNAPSHOT_EVERY == 0 or length == self._marked):
                self._keep(self._snapshot(step * STEP))
            if self.memory is not None:
                self.memory = self.further.pop(0) if self.further else self.folded(self.memory, step * STEP)
        self.drop_rows(steps * STEP)
        self.length += steps * STEP

    def _snapshot(self, first: int) -> Snapshot:
        """With the rows before number ``first`` behind the state."""
        rows = tuple(tensor[..., first : first + self.lead, :].clone() for tensor in self.rows)
        return Snapshot(self.length + first, rows, self.memory)

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep it in the place of an earlier one if there are many: of the one whose neighbours are nearest."""
        self.snapshots.append(snapshot)
        if len(self.snapshots) > MOST_SNAPSHOTS:
            lengths = [0, *(kept.length for kept in self.snapshots)]
            gaps = [lengths[i + 2] - lengths[i] for i in range(MOST_SNAPSHOTS)]
            del self.snapshots[gaps.index(min(gaps))]


def state_with_memory(
    lead: int,
    channels: int,
    keys: tuple[int, int],
    values: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    wide: torch.dtype,
) -> RecurrentState:
    """The state before a text of a layer with a memory: x of so many ``channels``, in ``dtype``; k [G, D] and u [H, V],
    whose numbers are ``keys`` and ``values``, and the memory in ``wide``.
    """
    (G, D), (H, V) = keys, values
    path_HR1 = torch.zeros((H, lead, 1), device=device, dtype=torch.float64)
    rows = [
        torch.zeros((lead, channels), device=device, dtype=dtype),
        torch.zeros((G, lead, D), device=device, dtype=wide),
        torch.zeros((H, lead, V), device=device, dtype=wide),
        path_HR1,
    ]
    memory = Memory(torch.zeros((H, V, D), device=device, dtype=wide), path_HR1.new_zeros(H))
    return RecurrentState(lead, rows, memory)


def _longer(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    *dims, there, width = tensor.shape
    longer = tensor.new_zeros((*dims, rows, width))
    longer[..., :there, :] = tensor
    return longer
