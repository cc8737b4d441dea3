"""The static KV cache: one tensor for K and one for V over all layers and all requests.

Every request has a slot of its own, with room for ``capacity`` tokens: its committed ones, and after them the rows of
the pass in progress. How many are committed is the session's business. Memory is taken in :meth:`KVCache.reserve`,
between passes, and never inside one.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, K rows that are moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from spec_sdk.errors import UserError
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.uploads import numbers_on

GRANULE = 64
"""Capacities are multiples of this, so that answers of nearly the same length share one cache."""

MOST_COPIES = 4
"""Moves of rows that are made one by one; more take longer than one by numbers, which have to be brought to the device.
"""

LEAST_DOUBLED = 1024
"""Tokens that a slot of a cache that doubles has room for at least."""


class KVCache:
    """K and V of ``slots`` requests, each up to ``capacity`` tokens long; columns beyond those written are zero.

    ``storages``: the attributes that hold a tensor [L, S, G, C, …] each, which grow and are committed alike. Where a
    value is its key (``values`` is false), V is K's tensor.
    ``doubles_up_to``: slots of no more tokens have room for a power of two of them, or for so many, where there is
    memory to spare, so that a cache that passes were captured for is seldom put elsewhere.
    """

    storages: ClassVar[tuple[str, ...]] = ("k_LSGCD", "v_LSGCD")
    doubles_up_to: int = 0
    _asked: int = 0

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        slots: int = 1,
        values: bool = True,
    ) -> None:
        shape = (layers, slots, kv_heads, 0, head_dim)
        self.k_LSGCD = torch.empty(shape, device=device, dtype=dtype)
        self.v_LSGCD = torch.empty(shape, device=device, dtype=dtype) if values else self.k_LSGCD
        self._of_its_own = [name for name in self.storages if values or name != "v_LSGCD"]

    @property
    def slots(self) -> int:
        """Requests that it holds."""
        return self.k_LSGCD.shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that a slot has room for."""
        return self.k_LSGCD.shape[3]

    @property
    def lies_at(self) -> Hashable:
        """Where it lies: another one after it grew."""
        return tuple(storage.data_ptr() for storage in self._tensors()), self.slots, self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of K and V together."""
        return sum(storage.numel() * storage.element_size() for storage in self._tensors())

    def reserve(self, slots: int, capacity: int) -> None:
        """Have room for ``slots`` requests of ``capacity`` tokens; what is stored stays.

        Raises UserError, with the numbers, if the memory for it is not to be had.
        """
        asked = max(self._asked, capacity)
        if slots <= self.slots and capacity <= self.capacity:
            self._asked = asked
            return
        slots = max(slots, self.slots)
        capacity = whole_granules(asked)
        larger = None
        if capacity <= self.doubles_up_to:
            doubled = min(whole_granules(self.doubles_up_to), max(LEAST_DOUBLED, 1 << (capacity - 1).bit_length()))
            if self._is_spare(slots * doubled):
                with contextlib.suppress(RuntimeError, MemoryError):
                    larger = self._enlarged(slots, doubled)
        try:
            larger = larger or self._enlarged(slots, capacity)
        except (RuntimeError, MemoryError) as error:
            raise no_memory(self.k_LSGCD, slots, capacity, "tokens", self._copies) from error
        self._asked = asked
        for name, storage in zip(self._of_its_own, larger, strict=True):
            setattr(self, name, storage)
        if "v_LSGCD" not in self._of_its_own:
            self.v_LSGCD = self.k_LSGCD

    def fill_with_noise(self) -> None:
        """Random K and V, for measurements."""
        for storage in self._tensors():
            storage.normal_()

    def of_pass(self, inputs: PassInputs) -> PassCache:
        """The cache as one pass writes and reads it."""
        return PassCache(self.k_LSGCD, self.v_LSGCD, inputs)

    def rows_of(self, layer: int, slot: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [G, end − first, D] that a layer has of tokens ``first`` … ``end - 1`` of a slot, in floating point:
        do not write to them.
        """
        return self.k_LSGCD[layer, slot, :, first:end], self.v_LSGCD[layer, slot, :, first:end]

    def commit(self, slots: Sequence[int], prefixes: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Move the rows ``paths`` (offsets from the request's prefix, increasing) right behind the prefix, in order.

        For all layers at once; rows that stand there already are not touched. Raises ValueError for a path that does
        not increase from 0 on or leaves the slot.
        """
        moves: list[Move] = []
        for slot, prefix, path in zip(slots, prefixes, paths, strict=True):
            if any(b <= a for a, b in zip(path, path[1:], strict=False)) or (path and path[0] < 0):
                raise ValueError(f"a path of cache rows must increase from 0 on: {list(path)}")
            if path and prefix + path[-1] >= self.capacity:
                raise ValueError(f"row {path[-1]} lies outside the {self.capacity - prefix} rows after the prefix")
            moves += moves_of(slot, prefix, path)
        if len(moves) <= MOST_COPIES:
            for storage in self._tensors():
                for move in moves:
                    move.make(storage)
            return
        slot_K, source_K, target_K = numbers_on(
            self.k_LSGCD.device, [*zip(*(row for move in moves for row in move.rows), strict=True)]
        )
        for storage in self._tensors():
            # reading by index copies first, so a row may be overwritten that is still to be read
            storage[:, slot_K, :, target_K] = storage[:, slot_K, :, source_K]

    def keeps(self, slot: int, length: int) -> int:
        """How many of the first ``length`` of a slot's tokens a request can go on from, all of them committed."""
        return length

    def roll_back(self, slot: int, length: int) -> int:
        """Forget what comes behind the first ``length`` tokens of a slot, or behind as many as it :meth:`keeps`, which
        it returns.
        """
        return length

    def _is_spare(self, tokens: int) -> bool:
        """Whether room for so many tokens leaves half of the device's free memory to others, as far as it says."""
        free = free_bytes(self.k_LSGCD.device)
        layers, _, heads, _, dim = self.k_LSGCD.shape
        of_a_token = self._copies * layers * heads * dim * self.k_LSGCD.element_size()
        return free is None or tokens * of_a_token <= free / 2

    def _enlarged(self, slots: int, capacity: int) -> list[torch.Tensor]:
        return [enlarged(storage, slots, capacity) for storage in self._tensors()]

    def _tensors(self) -> list[torch.Tensor]:
        return [getattr(self, name) for name in self._of_its_own]

    @property
    def _copies(self) -> int:
        """Tensors of K's size: 2, or 1 where V is K's."""
        return 2 if "v_LSGCD" in self._of_its_own else 1


@dataclass(frozen=True)
class Move:
    """Of a slot's columns, ``count`` from ``source`` on go to ``target``, which comes before."""

    slot: int
    source: int
    target: int
    count: int

    @property
    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Slot, source and target of each."""
        return ((self.slot, self.source + i, self.target + i) for i in range(self.count))

    def make(self, storage: torch.Tensor) -> None:
        """Copy them in a storage [L, S, G, C, D]."""
        columns = storage[:, self.slot]
        moved = columns[:, :, self.source : self.source + self.count]
        if self.target + self.count > self.source:
            moved = moved.clone()
        columns[:, :, self.target : self.target + self.count] = moved


def moves_of(slot: int, prefix: int, path: Sequence[int]) -> list[Move]:
    """What brings the rows ``path`` behind the prefix: one for rows that follow upon each other, as they do along the
    first children of a tree's nodes.

    >>> [(move.source, move.target, move.count) for move in moves_of(0, 100, [0, 5, 6, 9])]
    [(105, 101, 2), (109, 103, 1)]
    """
    moves: list[Move] = []
    first = 0
    for place in range(1, len(path) + 1):
        if place < len(path) and path[place] == path[place - 1] + 1:
            continue
        if path[first] != first:
            moves.append(Move(slot, prefix + path[first], prefix + first, place - first))
        first = place
    return moves


def is_exact(form: str, dtype: torch.dtype) -> bool:
    """Whether a cache in ``form`` (``model.kv_cache``) keeps what a model in ``dtype`` computes, as it is."""
    return form == "exact" or (form == "bfloat16" and dtype == torch.bfloat16)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, with what torch has of it and does not use; None elsewhere."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def whole_granules(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE


def enlarged(storage: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
    """A copy of ``storage`` [L, S, G, C, D] with room for so much; what is new is zero, and more is left out."""
    layers, old_slots, heads, old_capacity, dim = storage.shape
    old_capacity = min(old_capacity, capacity)
    # zeros, since a column that nobody wrote may be read under a mask, where garbage could be NaN
    larger = storage.new_zeros((layers, slots, heads, capacity, dim))
    larger[:, :old_slots, :, :old_capacity] = storage[:, :, :, :old_capacity]
    return larger


def no_memory(storage: torch.Tensor, slots: int, capacity: int, columns: str, copies: int = 2) -> UserError:
    """The error, with the numbers, where ``copies`` of ``storage`` cannot be had in this size; ``columns`` are tokens,
    say.
    """
    layers, _, heads, _, dim = storage.shape
    size = copies * layers * heads * dim * storage.element_size() * slots * capacity
    return UserError(
        f"KV cache: no memory for {size / 2**30:.1f} GiB ({slots} requests of {capacity} {columns}, {layers} "
        f"layers, {heads} KV heads of {dim}, {str(storage.dtype).removeprefix('torch.')}); ask for fewer "
        "tokens (max_new_tokens, a shorter prompt) or fewer requests at once"
    )
