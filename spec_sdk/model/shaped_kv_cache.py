"""The cache of a model whose layers have heads of different shapes: one cache for each shape."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from spec_sdk.model.kv_cache import KVCache
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs


class CachePlace(NamedTuple):
    """Which of the caches a layer's K and V are in, and which of that one's layers they are."""

    part: int
    layer: int


class ShapedKVCache(KVCache):
    """``parts``, which grow and are committed alike. ``places``: where each of the model's layers finds its K and V;
    several layers may share a place.
    """

    def __init__(self, parts: Sequence[KVCache], places: Sequence[CachePlace]) -> None:
        self.parts = tuple(parts)
        self.places = tuple(places)

    @property
    def slots(self) -> int:
        return min(part.slots for part in self.parts)

    @property
    def capacity(self) -> int:
        return min(part.capacity for part in self.parts)

    @property
    def lies_at(self) -> Hashable:
        return tuple(part.lies_at for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def reserve(self, slots: int, capacity: int) -> None:
        for part in self.parts:
            part.doubles_up_to = self.doubles_up_to
            part.reserve(slots, capacity)

    def fill_with_noise(self) -> None:
        for part in self.parts:
            part.fill_with_noise()

    def of_pass(self, inputs: PassInputs) -> ShapedPassCache:
        return ShapedPassCache([part.of_pass(inputs) for part in self.parts], self.places, inputs)

    def rows_of(self, layer: int, slot: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = self.places[layer]
        return self.parts[place.part].rows_of(place.layer, slot, first, end)

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for part in self.parts:
            part.commit(slots, prefixes, paths)


class ShapedPassCache(PassCache):
    """A :class:`ShapedKVCache` in one pass. Its layers have their numbers in the model, one at a time.

    Kernels are given :meth:`of_layer`, a cache of layers of one shape.
    """

    in_place = False

    def __init__(self, parts: Sequence[PassCache], places: Sequence[CachePlace], inputs: PassInputs) -> None:
        self.inputs = inputs
        self.made = {}
        self.parts, self._places = parts, places

    def of_pass(self, inputs: PassInputs) -> ShapedPassCache:
        return ShapedPassCache([part.of_pass(inputs) for part in self.parts], self._places, inputs)

    def of_layer(self, layer: int) -> tuple[PassCache, int]:
        """The cache that has a layer's K and V, and its number there."""
        place = self._places[layer]
        return self.parts[place.part], place.layer

    def layers(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        part, place = self.of_layer(first)
        return part.layers(place, place + end - first)

    def keys_values(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        part, place = self.of_layer(first)
        return part.keys_values(index, place, place + end - first)

    def write(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        part, place = self.of_layer(first)
        part.write(place, k_gBNGD, v_gBNGD)
