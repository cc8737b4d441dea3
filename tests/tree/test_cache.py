"""The KV cache against lists that are copied whole at every step.

Legend: B requests, N rows of a request, G KV heads, D head dim.
"""

from __future__ import annotations

from operator import itemgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spec_sdk.errors import UserError
from spec_sdk.model import kv_cache
from spec_sdk.model.kv_cache import GRANULE, LEAST_DOUBLED, KVCache
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from tests.support.tiny_decoder import tiny_decoder

LAYERS, KV_HEADS, HEAD_DIM, SLOTS = 3, 2, 4, 3
CPU = torch.device("cpu")


def new_cache(layers: int = LAYERS) -> KVCache:
    return KVCache(layers, KV_HEADS, HEAD_DIM, CPU, torch.float32)


def entries(first: int, count: int) -> torch.Tensor:
    """``count`` recognisable entries [1, count, KV_HEADS, HEAD_DIM], numbered from ``first``."""
    number = torch.arange(first, first + count, dtype=torch.float32)[None, :, None, None]
    return number + torch.arange(KV_HEADS)[:, None] / 10 + torch.arange(HEAD_DIM) / 100


def pass_inputs(rows: dict[int, int], prefix: dict[int, int]) -> PassInputs:
    """A pass of ``rows[slot]`` rows after the ``prefix[slot]`` first ones of each slot."""
    return PassInputs.of("chain", [RequestRows.chain(slot, prefix[slot], [0] * new) for slot, new in rows.items()], CPU)


class CacheAgainstList(RuleBasedStateMachine):
    """Passes of some of the requests are written, committed in part, rolled back, and storage grows in between."""

    @initialize()
    def start(self) -> None:
        self.cache = new_cache()
        self.committed: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
        self.written = 0

    @rule(rows=st.dictionaries(st.integers(0, SLOTS - 1), st.integers(1, 20), min_size=1), data=st.data())
    def a_pass(self, rows: dict[int, int], data: st.DataObject) -> None:
        """A tree pass, of which a path is kept for each request: any increasing rows. Shorter requests are padded."""
        prefix = {slot: len(self.committed[slot]) for slot in rows}
        self.cache.reserve(max(rows) + 1, max(prefix[slot] + new for slot, new in rows.items()))
        inputs, width, first = pass_inputs(rows, prefix), max(rows.values()), dict[int, int]()
        for slot in rows:
            first[slot] = 1000 * self.written
            self.written += 1
        for layer in range(LAYERS):
            k_BNGD = torch.cat([entries(first[slot] + layer * 100, width) for slot in rows])
            self.cache.of_pass(inputs).write(layer, k_BNGD[None], -k_BNGD[None])
        paths = [sorted(data.draw(st.sets(st.integers(0, new - 1)))) for new in rows.values()]
        self.cache.commit(list(rows), list(prefix.values()), paths)
        for slot, path in zip(rows, paths, strict=True):
            self.committed[slot] += [first[slot] + row for row in path]

    @rule(slot=st.integers(0, SLOTS - 1), data=st.data())
    def roll_back(self, slot: int, data: st.DataObject) -> None:
        """The cache is not told: what counts as committed is the session's business."""
        length = data.draw(st.integers(0, len(self.committed[slot])))
        self.committed[slot] = self.committed[slot][:length]

    @rule(slots=st.integers(1, SLOTS), more=st.integers(0, 400))
    def grow(self, slots: int, more: int) -> None:
        capacity = max(map(len, self.committed.values())) + more
        self.cache.reserve(slots, capacity)
        assert self.cache.slots >= slots and self.cache.capacity >= capacity

    @invariant()
    def holds_what_was_committed(self) -> None:
        for slot in range(self.cache.slots):
            length = len(self.committed[slot])
            for layer in range(LAYERS):
                own = layer, slice(slot, slot + 1), slice(None), slice(length)
                k_BGSD, v_BGSD = self.cache.k_LSGCD[own], self.cache.v_LSGCD[own]
                expected = [entries(number + layer * 100, 1) for number in self.committed[slot]]
                expected_BNGD = torch.cat(expected, dim=1) if expected else torch.empty(1, 0, KV_HEADS, HEAD_DIM)
                assert torch.equal(k_BGSD, expected_BNGD.transpose(1, 2))
                assert torch.equal(v_BGSD, -expected_BNGD.transpose(1, 2))


TestCacheAgainstList = CacheAgainstList.TestCase
TestCacheAgainstList.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


@given(st.integers(1, 200))
def test_growing_keeps_a_pass_in_progress(rows: int) -> None:
    """One that fills its slots to the last column."""
    cache = new_cache(1)
    cache.reserve(2, rows)
    rows = cache.capacity
    k_BNGD = torch.cat((entries(0, rows), entries(500, rows)))
    cache.of_pass(pass_inputs({0: rows, 1: rows}, {0: 0, 1: 0})).write(0, k_BNGD[None], k_BNGD[None])
    cache.reserve(2 * cache.slots, 10 * cache.capacity)
    for slot in (0, 1):
        k_BGSD = cache.k_LSGCD[0, slot : slot + 1, :, :rows]
        assert torch.equal(k_BGSD, k_BNGD[slot : slot + 1].transpose(1, 2))


def test_one_that_doubles_has_room_to_spare_where_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies elsewhere only when it doubles; where that is too much, it grows as others do."""
    cache, plain = new_cache(1), new_cache(1)
    cache.doubles_up_to = 5 * LEAST_DOUBLED
    places = set()
    for tokens in (10, 1000, LEAST_DOUBLED, LEAST_DOUBLED + 1, 2 * LEAST_DOUBLED):
        cache.reserve(1, tokens)
        places.add((cache.k_LSGCD.data_ptr(), cache.capacity))
    assert [capacity for _, capacity in sorted(places, key=itemgetter(1))] == [LEAST_DOUBLED, 2 * LEAST_DOUBLED]
    real, most = kv_cache.enlarged, 3 * LEAST_DOUBLED

    def little_memory(storage: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        if slots * capacity > most:
            raise RuntimeError("out of memory")
        return real(storage, slots, capacity)

    monkeypatch.setattr(kv_cache, "enlarged", little_memory)
    for one in (cache, plain):
        one.reserve(1, 2 * LEAST_DOUBLED + 7)
    assert cache.capacity == plain.capacity < 3 * LEAST_DOUBLED
    with pytest.raises(UserError, match="^KV cache: no memory for"):
        cache.reserve(1, 4 * LEAST_DOUBLED)


def test_one_that_had_no_memory_for_a_request_has_some_for_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, real = new_cache(1), kv_cache.enlarged

    def little_memory(storage: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        if capacity > 2 * LEAST_DOUBLED:
            raise RuntimeError("out of memory")
        return real(storage, slots, capacity)

    monkeypatch.setattr(kv_cache, "enlarged", little_memory)
    with pytest.raises(UserError, match="^KV cache: no memory for"):
        cache.reserve(1, 4 * LEAST_DOUBLED)
    cache.reserve(2, 100)
    assert cache.slots == 2


def test_one_that_doubles_gives_up_what_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests fit as without; what was written stays."""
    cache, real = new_cache(1), kv_cache.enlarged
    cache.doubles_up_to = 4 * LEAST_DOUBLED
    asked = LEAST_DOUBLED + 100
    cache.reserve(1, asked)
    assert cache.capacity == 2 * LEAST_DOUBLED
    cache.k_LSGCD[:, :, :, :asked] = 3.0

    def little_memory(storage: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        if slots * capacity > 4 * (asked + GRANULE):
            raise RuntimeError("out of memory")
        return real(storage, slots, capacity)

    monkeypatch.setattr(kv_cache, "enlarged", little_memory)
    cache.reserve(4, asked)
    assert cache.slots == 4 and asked <= cache.capacity < asked + GRANULE
    assert (cache.k_LSGCD[:, 0, :, :asked] == 3.0).all() and not cache.k_LSGCD[:, 1:].any()


@pytest.mark.parametrize(("spare", "capacity"), [(1.0, 2 * LEAST_DOUBLED), (0.9, LEAST_DOUBLED + GRANULE)])
def test_a_device_s_memory_is_not_filled_with_room(
    spare: float, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is free stays."""
    cache = new_cache()
    cache.doubles_up_to = 4 * LEAST_DOUBLED
    doubled = 2 * 4 * LAYERS * KV_HEADS * HEAD_DIM * 2 * LEAST_DOUBLED
    monkeypatch.setattr(kv_cache, "free_bytes", lambda device: int(2 * spare * doubled))
    cache.reserve(1, LEAST_DOUBLED + 1)
    assert cache.capacity == capacity


def test_none_doubles_beyond_what_a_model_can_hold() -> None:
    cache = new_cache(1)
    cache.doubles_up_to = 3 * LEAST_DOUBLED
    cache.reserve(1, 2 * LEAST_DOUBLED + 7)
    assert cache.capacity == 3 * LEAST_DOUBLED
    cache.reserve(1, 3 * LEAST_DOUBLED + 7)
    assert cache.capacity == 3 * LEAST_DOUBLED + GRANULE


@pytest.mark.parametrize(
    ("path", "fault"),
    [([0, 2, 1], "must increase"), ([1, 1], "must increase"), ([-1, 0], "must increase"), ([0, 999], "row 999 lies")],
)
def test_a_path_that_is_none_is_refused(path: list[int], fault: str) -> None:
    """And then nothing was moved, of no request."""
    cache = new_cache(1)
    cache.reserve(2, 8)
    k_BNGD = torch.cat((entries(0, 8), entries(500, 8)))
    cache.of_pass(pass_inputs({0: 8, 1: 8}, {0: 0, 1: 0})).write(0, k_BNGD[None], k_BNGD[None])
    before = cache.k_LSGCD.clone()
    with pytest.raises(ValueError, match=fault):
        cache.commit([0, 1], [0, 0], [[1, 3], path])
    assert torch.equal(cache.k_LSGCD, before)


def test_a_row_beyond_the_slot_is_refused() -> None:
    """Though there are as many rows in a slot: they are counted from the prefix."""
    cache = new_cache(1)
    cache.reserve(2, 8)
    last = cache.capacity - 1
    cache.commit([1], [last - 4], [[1, 4]])
    with pytest.raises(ValueError, match="row 5 lies outside the 5 rows after the prefix"):
        cache.commit([0, 1], [0, last - 4], [[0], [1, 5]])


def test_rolling_back_to_the_future_is_refused() -> None:
    session = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))
    session.prefill(1, [5, 6])
    for length in (3, -1):
        with pytest.raises(ValueError, match=f"cannot roll back to {length} tokens: 2 are committed"):
            session.truncate(1, length)
    assert (session.length(0), session.length(1)) == (0, 2)
