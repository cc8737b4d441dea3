"""The KV cache of TT-NN: a tensor of keys and one of values for each layer of each request."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spec_sdk.contracts import Cache
from spec_sdk_backends.ttnn.operations import KEY_TILES, TILE, DeviceTensor, Operations, padded


class TtnnCache(Cache):
    """``k``, ``v``: [slot][layer] → the adapter's caches. They have room for ``capacity`` tokens, in whole chunks."""

    def __init__(self, operations: Operations, layers: int, kv_heads: int, head_dim: int) -> None:
        self._operations = operations
        self._layers = layers
        self._shape = kv_heads, head_dim
        self.k: list[list[DeviceTensor]] = []
        self.v: list[list[DeviceTensor]] = []
        self._capacity = 0

    @property
    def slots(self) -> int:
        return len(self.k)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def nbytes(self) -> int:
        return 2 * self.slots * self._layers * self._rows * math.prod(self._shape) * self._operations.dtype.itemsize

    @property
    def _rows(self) -> int:
        return padded(self._capacity, KEY_TILES * TILE)

    def reserve(self, slots: int, capacity: int) -> None:
        before, self._capacity = self._rows, max(self._capacity, capacity)
        for storage in (self.k, self.v):
            if self._rows > before:
                storage[:] = [[self._larger(cache) for cache in layers] for layers in storage]
            while len(storage) < slots:
                storage.append([self._new() for _ in range(self._layers)])

    def _new(self) -> DeviceTensor:
        return self._operations.new_cache(self._rows, *self._shape)

    def _larger(self, cache: DeviceTensor) -> DeviceTensor:
        larger = self._new()
        self._operations.write_cache(larger, self._operations.read_cache(cache))
        return larger

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for slot, prefix, path in zip(slots, prefixes, paths, strict=True):
            in_place = next((i for i, row in enumerate(path) if row != i), len(path))
            if in_place < len(path):
                sources = [prefix + row for row in path[in_place:]]
                for cache in (*self.k[slot], *self.v[slot]):
                    self._operations.move_in_cache(cache, sources, prefix + in_place)
