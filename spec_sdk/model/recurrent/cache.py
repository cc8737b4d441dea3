"""The cache of a model with recurrent layers: K and V of its attention layers, and states.

Legend: L attention layers, S slots, G KV heads, C capacity of a slot, D head dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.recurrent.layers import RecurrentMixer
from spec_sdk.model.recurrent.paths import RowPaths
from spec_sdk.model.recurrent.state import RecurrentState
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs, PassPart


class RecurrentCache(KVCache):
    """A KV cache of the layers with attention alone, with a state of every request in those that have one.

    ``mixers``: the model's layers that have a state, by their numbers in it; ``attending``: the numbers of those with
    attention. ``takes_snapshots``: whether a text may be gone on from in the middle of one that was fed.
    """

    def __init__(
        self,
        mixers: Mapping[int, RecurrentMixer],
        attending: Sequence[int],
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        takes_snapshots: bool = True,
    ) -> None:
        super().__init__(len(attending), kv_heads, head_dim, device, dtype)
        self.place = {layer: place for place, layer in enumerate(attending)}
        """Which of the attention layers a layer of the model is."""
        self._mixers = mixers
        self._states: dict[int, dict[int, RecurrentState]] = {}
        self._new = device, dtype
        self._takes_snapshots = takes_snapshots

    @property
    def nbytes(self) -> int:
        """Bytes of K, V, states, their rows and snapshots together."""
        return super().nbytes + sum(state.nbytes for states in self._states.values() for state in states.values())

    def states(self, slot: int) -> Mapping[int, RecurrentState]:
        """Layer → its state of the slot's request."""
        if slot not in self._states:
            self._states[slot] = {layer: mixer.new_state(*self._new) for layer, mixer in self._mixers.items()}
            for state in self._states[slot].values():
                state.takes_snapshots = self._takes_snapshots
        return self._states[slot]

    def of_pass(self, inputs: PassInputs) -> RecurrentPassCache:
        return RecurrentPassCache(self, inputs)

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        super().commit(slots, prefixes, paths)
        for slot, prefix, path in zip(slots, prefixes, paths, strict=True):
            if any(row != place for place, row in enumerate(path)):
                for state in self.states(slot).values():
                    state.move(prefix, path)

    def keeps(self, slot: int, length: int) -> int:
        states = self._states.get(slot, {}).values()
        # what an interrupted pass left differs from layer to layer
        while (kept := min((state.keeps(length) for state in states), default=length)) < length:
            length = kept
        return length

    def roll_back(self, slot: int, length: int) -> int:
        kept = self.keeps(slot, length)
        for state in self._states.get(slot, {}).values():
            state.roll_back(kept)
        return kept


class RecurrentPassCache(PassCache):
    """A :class:`RecurrentCache` in one pass. Its layers have their numbers in the model, one at a time."""

    def __init__(self, cache: RecurrentCache, inputs: PassInputs) -> None:
        super().__init__(cache.k_LSGCD, cache.v_LSGCD, inputs)
        self._cache = cache

    def of_pass(self, inputs: PassInputs) -> RecurrentPassCache:
        return RecurrentPassCache(self._cache, inputs)

    def of_attention(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of all layers with attention [L, S, G, C, D]."""
        return super().layers(0, len(self._cache.place))

    def layers(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = self._cache.place[first]
        return super().layers(place, place + end - first)

    def keys_values(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = self._cache.place[first]
        return super().keys_values(index, place, place + end - first)

    def write(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        super().write(self._cache.place[first], k_gBNGD, v_gBNGD)

    def state(self, layer: int, slot: int) -> RecurrentState:
        """A recurrent layer's, of a request."""
        return self._cache.states(slot)[layer]

    def paths(self, part: PassPart) -> RowPaths:
        """Which rows a request's go on from, made once for all layers."""
        key = RowPaths, part.index
        found: RowPaths | None = self.made.get(key)
        if found is None:
            found = self.made[key] = RowPaths.of(part, self._cache.k_LSGCD.device)
        return found
