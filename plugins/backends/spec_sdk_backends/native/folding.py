"""States of gated delta nets, into which the kernels fold old rows (legend: H heads, D key dim, V value dim)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.recurrent.state import RecurrentState
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.recurrent_structures import DeltaNet, Kept
from spec_sdk_backends.native.structures import DTYPES, address


class NativeState(RecurrentState):
    """A state of ``net``, of rows in a dtype that the kernels know."""

    def __init__(self, net: DeltaNet, lead: int, rows: Sequence[torch.Tensor], memory_HVD: torch.Tensor | None) -> None:
        super().__init__(lead, rows, memory_HVD)
        self._net = net

    def _fold(self, count: int) -> None:
        x_RC, memory_HVD = self.rows[0], self.memory_HVD
        if memory_HVD is None or x_RC.dtype not in DTYPES or not Kept.suits(self, x_RC.dtype):
            super()._fold(count)
            return
        kept = Kept.of(self)
        # what a snapshot holds stays as it is
        if any(snapshot.memory_HVD is memory_HVD for snapshot in self.snapshots):
            self.memory_HVD = torch.empty_like(memory_HVD)
        assert self.memory_HVD is not None
        library().spec_fold(
            DTYPES[x_RC.dtype],
            address(self._net),
            address(kept),
            count,
            self._reach(count),
            self.memory_HVD.data_ptr(),
            min(torch.get_num_threads(), self._net.key_heads),
        )
        self.length += count
