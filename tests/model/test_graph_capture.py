"""GraphCapture on a stand-in for torch.cuda: one stream, one pool while a graph of it lives, none after a failure."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import CannotCapture
from spec_sdk_backends.cuda_graphs import WARM_UPS, GraphCapture

DEVICE = torch.device("cuda", 1)


class Stream:
    def __init__(self, device: torch.device) -> None:
        assert device == DEVICE

    def wait_stream(self, other: Stream) -> None:
        assert other is not self


class Graph:
    def replay(self) -> None:
        """Nothing is launched."""


class FakeCuda:
    """What torch does to pools and streams: a pool whose graphs have ended takes no other, nor does one whose capture
    failed; and that leaves its stream the current one.
    """

    def __init__(self) -> None:
        self.main = self.current = Stream(DEVICE)
        self.pools, self.alive, self.used = 0, Counter[int](), list[tuple[int, Stream]]()
        self.closed: set[int] = set()

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Graph, pool: int, stream: Stream) -> Iterator[None]:
        assert pool not in self.closed, "use_count > 0"
        self.used.append((pool, stream))
        self.closed.add(pool)
        with self.stream(stream):
            yield
        self.closed.remove(pool)
        self.alive[pool] += 1
        weakref.finalize(graph, self.ended, pool)

    def ended(self, pool: int) -> None:
        self.alive[pool] -= 1
        if not self.alive[pool]:
            self.closed.add(pool)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("graph_pool_handle", "current_stream", "set_stream", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    return fake


def one_pass() -> PassOutput:
    return PassOutput(torch.zeros(1, 1, 2))


def fails_at(run: int, error: Exception) -> Callable[[], PassOutput]:
    """A pass whose runs before this one go well."""
    left = [run]

    def passes() -> PassOutput:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return one_pass()

    return passes


def test_graphs_share_a_pool_and_a_stream(cuda: FakeCuda) -> None:
    capture = GraphCapture(DEVICE)
    kept: list[Any] = [capture(one_pass) for _ in range(3)]
    assert len(set(cuda.used)) == 1 and capture.captures == len(kept) and cuda.used[0][1] is not cuda.main


def test_a_pool_whose_graphs_have_ended_is_not_used_again(cuda: FakeCuda) -> None:
    """As after a cache has grown; what somebody still holds of an old graph's memory does not matter."""
    capture = GraphCapture(DEVICE)
    kept: list[Any] = [capture(one_pass), capture(one_pass)]
    del kept[0]
    kept.append(capture(one_pass))
    assert cuda.pools == 1
    kept.clear()
    kept.append(capture(one_pass))
    kept.append(capture(one_pass))
    assert [pool for pool, _ in cuda.used] == [1, 1, 1, 2, 2] and len({stream for _, stream in cuda.used}) == 1


def test_a_capture_that_fails_spoils_no_other(cuda: FakeCuda) -> None:
    capture = GraphCapture(DEVICE)
    kept: list[Any] = [capture(one_pass)]
    with pytest.raises(CannotCapture, match="RuntimeError: operation not permitted$"):
        capture(fails_at(WARM_UPS, RuntimeError("operation not permitted\nand more")))
    assert cuda.current is cuda.main and capture.failure == "RuntimeError: operation not permitted"
    kept.append(capture(one_pass))
    assert [pool for pool, _ in cuda.used] == [1, 1, 2] and cuda.used[1][1] is not cuda.used[2][1]
    assert capture.captures == 2


def test_what_fails_before_it_is_captured_fails_as_it_would_without(cuda: FakeCuda) -> None:
    capture = GraphCapture(DEVICE)
    with pytest.raises(ValueError, match="of its own"):
        capture(fails_at(1, ValueError("of its own")))
    assert not cuda.used and not capture.failure
