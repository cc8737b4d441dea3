"""Times calls on a GPU, turn by turn: graph replays, which are the device alone, and whole calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from spec_sdk.bench.timing import Times
from spec_sdk.bench.turns import rotated

L2_BYTES = 256 * 2**20
"""Written between two measurements, so that no rival finds its inputs in the cache."""


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """The call as a CUDA graph, so that replays time the device alone; None where it cannot be captured.

    Whether it waits for the device is found out before a capture begins: a capture that breaks off leaves the random
    generator in no state to go on with. Every graph has memory of its own, so that one that fails spoils no other.
    """
    try:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        torch.cuda.synchronize()
        return graph
    except Exception:
        torch.cuda.synchronize()
        return None


def replays_of(calls: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The calls as replays of CUDA graphs. Raises RuntimeError, with its name, for one that cannot be captured."""
    replays: dict[str, Callable[[], object]] = {}
    for name, call in calls.items():
        if (graph := captured(call)) is None:
            raise RuntimeError(f"{name} cannot be captured as a CUDA graph")
        replays[name] = graph.replay
    return replays


def seconds_on_device(call: Callable[[], object], repeats: int) -> float:
    """Mean seconds of one call, over so many in a row, by events of the device."""
    start, stop = _event(), _event()
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / repeats


def median_replays(calls: Mapping[str, Callable[[], object]], rounds: int) -> tuple[Times, Times]:
    """Median seconds on the device (graph replays; no entry where a call cannot be captured), and of plain calls.

    A plain call is queued behind the write that empties the cache, so the time that Python takes to launch it shows
    only where it is longer than that write. For calls that wait for the device: :func:`median_wall`.
    """
    flush = torch.empty(L2_BYTES // 4, dtype=torch.int32, device="cuda")
    graphs = {name: captured(call) for name, call in calls.items()}
    replays: dict[str, Callable[[], object]] = {
        name: graph.replay for name, graph in graphs.items() if graph is not None
    }
    return _alternate(replays, flush, rounds), _alternate(calls, flush, rounds)


def median_wall(calls: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """Median wall seconds of calls that decide something on the host: launches, Python and the wait for the device.

    Device events would leave out the Python that runs before a call's first launch and after its last.
    """
    flush = torch.empty(L2_BYTES // 4, dtype=torch.int32, device="cuda")
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for name in [*calls] * 3:
        calls[name]()
    for turn in range(rounds):
        for name in rotated(calls, turn):
            flush.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter()
            calls[name]()
            torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def _alternate(calls: Mapping[str, Callable[[], object]], flush: torch.Tensor, rounds: int) -> Times:
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for name in [*calls] * 3:
        calls[name]()
    for turn in range(rounds):
        for name in rotated(calls, turn):
            start, stop = _event(), _event()
            flush.zero_()
            start.record()
            calls[name]()
            stop.record()
            pairs[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3
        for name, events in pairs.items()
    }


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
