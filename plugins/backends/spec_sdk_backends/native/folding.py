"""States of gated delta nets, into which the kernels fold old rows (legend: H heads, D key dim, V value dim)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.recurrent.state import STEP, Memory, RecurrentState
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.recurrent_structures import DeltaNet, Kept
from spec_sdk_backends.native.structures import DTYPES, address


class NativeState(RecurrentState):
    """A state of ``net``, of rows in a dtype that the kernels know."""

    def __init__(self, net: DeltaNet, lead: int, rows: Sequence[torch.Tensor], memory: Memory | None) -> None:
        super().__init__(lead, rows, memory)
        self._net = net

    def folded(self, memory: Memory, first: int) -> Memory:
        if not self._suits():
            return super().folded(memory, first)
        kept, made = Kept.of(self), Memory(torch.empty_like(memory.state_HVD), torch.empty_like(memory.path_H))
        library().spec_fold(
            address(self._net),
            address(kept),
            *(memory.state_HVD.data_ptr(), memory.path_H.data_ptr()),
            *(first, STEP),
            *(made.state_HVD.data_ptr(), made.path_H.data_ptr()),
            self._threads(),
        )
        return made

    def drop_rows(self, count: int) -> None:
        if not self._suits():
            super().drop_rows(count)
            return
        kept = Kept.of(self)
        dtype = DTYPES[self.rows[0].dtype]
        library().spec_drop_rows(dtype, address(self._net), address(kept), count, self.reach(count), self._threads())

    def _suits(self) -> bool:
        return self.rows[0].dtype in DTYPES and Kept.suits(self, self.rows[0].dtype)

    def _threads(self) -> int:
        heads: int = self._net.value_heads
        return min(torch.get_num_threads(), heads)
