"""The KV cache against a list that is copied whole at every step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spec_sdk.model.kv_cache import KVCache

LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 4


def entries(first: int, count: int) -> torch.Tensor:
    """``count`` recognisable entries [1, count, KV_HEADS, HEAD_DIM], numbered from ``first``."""
    number = torch.arange(first, first + count, dtype=torch.float32)[None, :, None, None]
    return number + torch.arange(KV_HEADS)[:, None] / 10 + torch.arange(HEAD_DIM) / 100


class CacheAgainstList(RuleBasedStateMachine):
    """Passes are written, committed in part, rolled back, and storage grows in between, in any order."""

    @initialize()
    def start(self) -> None:
        self.cache = KVCache(LAYERS, KV_HEADS, HEAD_DIM, torch.device("cpu"), torch.float32)
        self.committed: list[int] = []
        self.written = 0

    @rule(new=st.integers(1, 20), data=st.data())
    def a_pass(self, new: int, data: st.DataObject) -> None:
        """A tree pass, of which a path is kept: any increasing slots."""
        length = len(self.committed)
        self.cache.reserve(length + new)
        first = 1000 * self.written
        for layer in range(LAYERS):
            self.cache.write(layer, length, entries(first + layer * 100, new), -entries(first + layer * 100, new))
        self.written += 1
        path = sorted(data.draw(st.sets(st.integers(0, new - 1))))
        self.cache.commit(path)
        self.committed += [first + slot for slot in path]

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.committed)))
        self.cache.truncate(length)
        self.committed = self.committed[:length]

    @rule(more=st.integers(0, 400))
    def grow(self, more: int) -> None:
        self.cache.reserve(len(self.committed) + more)
        assert self.cache.capacity >= len(self.committed) + more

    @invariant()
    def holds_what_was_committed(self) -> None:
        length = len(self.committed)
        assert self.cache.length == length
        for layer in range(LAYERS):
            k_BGSD, v_BGSD = self.cache.keys_values(layer, length)
            expected = [entries(number + layer * 100, 1) for number in self.committed]
            expected_BNGD = torch.cat(expected, dim=1) if expected else torch.empty(1, 0, KV_HEADS, HEAD_DIM)
            assert torch.equal(k_BGSD, expected_BNGD.transpose(1, 2))
            assert torch.equal(v_BGSD, -expected_BNGD.transpose(1, 2))


TestCacheAgainstList = CacheAgainstList.TestCase
TestCacheAgainstList.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


@given(st.integers(1, 30), st.integers(0, 30))
def test_growing_keeps_a_pass_in_progress(length: int, new: int) -> None:
    cache = KVCache(1, KV_HEADS, HEAD_DIM, torch.device("cpu"), torch.float32)
    cache.reserve(length + new)
    cache.write(0, 0, entries(0, length + new), entries(0, length + new))
    cache.reserve(10 * cache.capacity)
    assert torch.equal(cache.keys_values(0, length + new)[0], entries(0, length + new).transpose(1, 2))


@pytest.mark.parametrize(
    ("path", "fault"),
    [([0, 2, 1], "must increase"), ([1, 1], "must increase"), ([-1, 0], "must increase"), ([0, 999], "slot 999 lies")],
)
def test_a_path_that_is_none_is_refused(path: list[int], fault: str) -> None:
    cache = KVCache(1, KV_HEADS, HEAD_DIM, torch.device("cpu"), torch.float32)
    cache.reserve(8)
    with pytest.raises(ValueError, match=fault):
        cache.commit(path)
    assert cache.length == 0


def test_rolling_back_to_the_future_is_refused() -> None:
    cache = KVCache(1, KV_HEADS, HEAD_DIM, torch.device("cpu"), torch.float32)
    cache.reserve(8)
    cache.commit([0, 1])
    for length in (3, -1):
        with pytest.raises(ValueError, match=f"cannot roll back to {length} slots: 2 are committed"):
            cache.truncate(length)
    assert cache.length == 2
