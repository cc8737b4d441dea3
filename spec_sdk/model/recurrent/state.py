"""What one recurrent layer keeps of one request: a state, and the rows that came after it.

A state cannot be taken back, so it stays some tokens behind: the rows of committed tokens after it, and of a tree's
nodes, are kept beside it as K and V are in a KV cache, and what a pass rejects costs nothing. The oldest rows are
folded into the state when there are many. Copies of earlier states (:class:`Snapshot`) are what a later request goes on
from that has only the beginning of the text in common.

Legend: R rows that there is room for, K rows before the state, … the dims of what a row keeps, H heads, D key dim, V
value dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.kv_cache import moves_of
from spec_sdk.ops.gated_delta import folded_state

MOST_PENDING = 48
"""Rows of committed tokens after a state; more are folded into it."""

LEAST_PENDING = 16
"""So many of them are left, so that a text may be gone on with in another way a few tokens before its end."""

SNAPSHOT_EVERY = 512
"""Tokens between the snapshots of a text."""

MOST_SNAPSHOTS = 3
"""Snapshots of a request, beside the state itself."""


@dataclass(frozen=True)
class Snapshot:
    """A state behind ``length`` tokens: K rows of every kind before it [..., K, ·], and S [H, V, D] or none."""

    length: int
    rows: tuple[torch.Tensor, ...]
    memory_HVD: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        held = [*self.rows, *([] if self.memory_HVD is None else [self.memory_HVD])]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


class RecurrentState:
    """The rows of one layer and request, from ``lead`` tokens before the state on, which stands behind ``length``
    tokens.

    ``rows``: a tensor [..., R, ·] of every kind of number that a row keeps, zero before the text begins. The row of
    cache column c is number ``c - length + lead`` in each of them.
    """

    def __init__(self, lead: int, rows: Sequence[torch.Tensor], memory_HVD: torch.Tensor | None = None) -> None:
        self.length = 0
        self.lead = lead
        self.rows = tuple(rows)
        self.memory_HVD = memory_HVD
        self.snapshots: list[Snapshot] = []
        self._after_prompt = False
        self._end = 0

    @property
    def nbytes(self) -> int:
        """Bytes of state, rows and snapshots."""
        held = [*self.rows, *([] if self.memory_HVD is None else [self.memory_HVD])]
        own = sum(tensor.numel() * tensor.element_size() for tensor in held)
        return own + sum(snapshot.nbytes for snapshot in self.snapshots)

    def index(self, column: int) -> int:
        """Where the row of a cache column lies."""
        return column - self.length + self.lead

    def go_on(self, prefix: int, end: int, in_prompt: bool) -> None:
        """Fold old rows, as :meth:`settle` does, and have room for those up to column ``end``."""
        self.settle(prefix, in_prompt)
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

    def settle(self, prefix: int, in_prompt: bool) -> None:
        """Fold old rows into the state if there are many before ``prefix``, all of them committed. ``in_prompt``: rows
        of a long chain follow. Rows that nobody wrote count as zero, as K and V in a KV cache do.

        Raises RuntimeError for a prefix that the state is beyond.
        """
        if prefix < self.length:
            raise RuntimeError(f"a recurrent state of {self.length} tokens cannot go on behind {prefix}")
        if self.index(prefix) > self.rows[0].shape[-2]:
            # nobody feeds a model so: passes of a length are measured so
            self.length = prefix - LEAST_PENDING
        pending = prefix - self.length
        if pending > MOST_PENDING:
            count = pending - LEAST_PENDING
            crosses = (self.length + count) // SNAPSHOT_EVERY > self.length // SNAPSHOT_EVERY
            if self.length and (crosses or (self._after_prompt and not in_prompt)):
                self._keep(self._snapshot())
            self._fold(count)
        self._after_prompt = in_prompt or (self._after_prompt and pending <= MOST_PENDING)

    def keeps(self, length: int) -> int:
        """How many of the first ``length`` tokens can be gone on from, all of them having been fed."""
        if length >= self.length:
            return length
        return max((snapshot.length for snapshot in self.snapshots if snapshot.length <= length), default=0)

    def roll_back(self, length: int) -> None:
        """Go back to ``length`` tokens, which :meth:`keeps` said can be gone on from."""
        if length >= self.length:
            return
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.length <= length]
        found = self.snapshots.pop() if length else None
        assert found is None or found.length == length, f"no snapshot of {length} tokens"
        for i, tensor in enumerate(self.rows):
            tensor.zero_()
            if found is not None:
                tensor[..., : self.lead, :] = found.rows[i]
        if self.memory_HVD is not None:
            self.memory_HVD = torch.zeros_like(self.memory_HVD) if found is None else found.memory_HVD
        self.length = length
        self._after_prompt = found is not None

    def _fold(self, count: int) -> None:
        """Fold the first ``count`` rows behind the state into it."""
        end = self.lead + count
        if self.memory_HVD is not None:
            _, k_GRD, u_HRV, path_HR1 = self.rows
            folded = slice(self.lead, end)
            path_HP = path_HR1[:, folded, 0].clone()
            self.memory_HVD = folded_state(self.memory_HVD, k_GRD[:, folded], u_HRV[:, folded], path_HP)
            path_HR1 -= path_HP[:, -1:, None]
        reach = self._reach(count)
        for tensor in self.rows:
            tensor[..., : reach - count, :] = tensor[..., count:reach, :].clone()
        self.length += count

    def _reach(self, count: int) -> int:
        """How many of the rows mean something before ``count`` are folded: to the end of the last pass."""
        return min(max(self.index(self._end), self.lead + count), self.rows[0].shape[-2])

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            self.length, tuple(tensor[..., : self.lead, :].clone() for tensor in self.rows), self.memory_HVD
        )

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep it in the place of an earlier one if there are many: of the one whose neighbours are nearest."""
        self.snapshots.append(snapshot)
        if len(self.snapshots) > MOST_SNAPSHOTS:
            lengths = [0, *(kept.length for kept in self.snapshots)]
            gaps = [lengths[i + 2] - lengths[i] for i in range(MOST_SNAPSHOTS)]
            del self.snapshots[gaps.index(min(gaps))]


def _longer(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    *dims, there, width = tensor.shape
    longer = tensor.new_zeros((*dims, rows, width))
    longer[..., :there, :] = tensor
    return longer
