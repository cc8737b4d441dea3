"""A KV cache in NumPy.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, n live rows of a request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spec_sdk.contracts import Cache
from spec_sdk.model.config import ModelConfig

Array = npt.NDArray[np.float32]


class NumpyCache(Cache):
    """K and V [L, S, G, C, D] of all layers and requests. It grows to exactly what is reserved."""

    def __init__(self, config: ModelConfig, layers: int) -> None:
        shape = (layers, 0, config.num_kv_heads, 0, config.head_dim)
        self.k_LSGCD: Array = np.zeros(shape, np.float32)
        self.v_LSGCD: Array = np.zeros(shape, np.float32)

    @property
    def slots(self) -> int:
        return self.k_LSGCD.shape[1]

    @property
    def capacity(self) -> int:
        return self.k_LSGCD.shape[3]

    @property
    def nbytes(self) -> int:
        return self.k_LSGCD.nbytes + self.v_LSGCD.nbytes

    def reserve(self, slots: int, capacity: int) -> None:
        more = max(0, slots - self.slots), max(0, capacity - self.capacity)
        if any(more):
            width = ((0, 0), (0, more[0]), (0, 0), (0, more[1]), (0, 0))
            self.k_LSGCD, self.v_LSGCD = np.pad(self.k_LSGCD, width), np.pad(self.v_LSGCD, width)

    def write(self, layer: int, slot: int, column: int, k_nGD: Array, v_nGD: Array) -> None:
        """Store a request's new keys and values of one layer, from a column on."""
        columns = slice(column, column + len(k_nGD))
        self.k_LSGCD[layer, slot, :, columns] = k_nGD.swapaxes(0, 1)
        self.v_LSGCD[layer, slot, :, columns] = v_nGD.swapaxes(0, 1)

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for slot, prefix, path in zip(slots, prefixes, paths, strict=True):
            rows, kept = prefix + np.array(path, int), slice(prefix, prefix + len(path))
            for storage in (self.k_LSGCD, self.v_LSGCD):
                # reading by index makes a copy, so a row may be overwritten that is still to be read
                storage[:, slot, :, kept] = storage[:, slot][:, :, rows]
