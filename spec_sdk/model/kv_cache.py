"""The KV cache: one tensor for K and one for V over all layers, so that a group of layers is written in one operation.

Legend: L layers, B batch, G KV heads, C capacity in slots, D head dim, N new slots, g layers of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KVCache:
    """``length`` committed slots, followed by the slots of the pass in progress, which :meth:`commit` keeps or drops.

    Storage grows by doubling in :meth:`reserve`, which a pass calls before its first layer; never inside one.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype, batch: int = 1
    ) -> None:
        shape = (layers, batch, kv_heads, 0, head_dim)
        self.k_LBGCD = torch.empty(shape, device=device, dtype=dtype)
        self.v_LBGCD = torch.empty(shape, device=device, dtype=dtype)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Slots allocated."""
        return self.k_LBGCD.shape[3]

    def reserve(self, slots: int) -> None:
        """Make room for ``slots`` in all; everything stored stays, committed or not."""
        if slots <= self.capacity:
            return
        capacity = max(slots, 2 * self.capacity, 128)
        self.k_LBGCD = self._grown(self.k_LBGCD, capacity)
        self.v_LBGCD = self._grown(self.v_LBGCD, capacity)

    def write(self, layer: int, at: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor) -> None:
        """Store N keys and values of one layer in the slots from ``at`` on."""
        end = at + k_BNGD.shape[1]
        self.k_LBGCD[layer, :, :, at:end] = k_BNGD.transpose(1, 2)
        self.v_LBGCD[layer, :, :, at:end] = v_BNGD.transpose(1, 2)

    def write_layers(self, first: int, at: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        """Store N keys and values of the g layers from ``first`` on, in the slots from ``at`` on."""
        last, end = first + k_gBNGD.shape[0], at + k_gBNGD.shape[2]
        self.k_LBGCD[first:last, :, :, at:end] = k_gBNGD.transpose(2, 3)
        self.v_LBGCD[first:last, :, :, at:end] = v_gBNGD.transpose(2, 3)

    def keys_values(self, layer: int, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views [B, G, slots, D] of a layer's first ``slots`` keys and values."""
        return self.k_LBGCD[layer, :, :, :slots], self.v_LBGCD[layer, :, :, :slots]

    def layers_keys_values(self, first: int, end: int, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for layers ``first`` … ``end - 1``, as further rows of the batch: [(end - first)*B, G, slots, D]."""
        k_gBGCD, v_gBGCD = self.k_LBGCD[first:end], self.v_LBGCD[first:end]
        return k_gBGCD.flatten(0, 1)[:, :, :slots], v_gBGCD.flatten(0, 1)[:, :, :slots]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the uncommitted slots ``path`` (offsets from ``length``, increasing), in that order, and drop the rest.

        Raises ValueError if the path is not increasing or leaves the allocated slots.
        """
        kept = len(path)
        if any(b <= a for a, b in zip(path, path[1:], strict=False)) or (kept and path[0] < 0):
            raise ValueError(f"a path of cache slots must increase from 0 on: {list(path)}")
        if kept and self.length + path[-1] >= self.capacity:
            raise ValueError(f"slot {path[-1]} lies outside the {self.capacity - self.length} slots after the prefix")
        if kept and path[-1] != kept - 1:
            source = torch.tensor(path, device=self.k_LBGCD.device) + self.length
            for storage in (self.k_LBGCD, self.v_LBGCD):
                # index_select copies first, so a slot may be overwritten that is still to be read
                storage[:, :, :, self.length : self.length + kept] = storage.index_select(3, source)
        self.length += kept

    def truncate(self, length: int) -> None:
        """Roll back to the first ``length`` committed slots. Raises ValueError if fewer are committed."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back to {length} slots: {self.length} are committed")
        self.length = length

    @staticmethod
    def _grown(storage: torch.Tensor, capacity: int) -> torch.Tensor:
        layers, batch, heads, old_capacity, dim = storage.shape
        larger = storage.new_empty((layers, batch, heads, capacity, dim))
        larger[:, :, :, :old_capacity] = storage
        return larger
