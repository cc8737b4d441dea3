"""Times rivals in one process, turn by turn, so that all of them meet the same state of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

LEAST_ROUNDS = 5
L2_BYTES = 256 * 2**20
"""Written between two measurements on a GPU, so that no rival finds its inputs in the cache."""

Times = dict[str, float]


def own_clock(device: torch.device) -> Callable[[], float]:
    """A clock for calls that share their machine with other programs.

    On a CPU with one torch thread: the processor time of this thread, which does not count while another program has
    the core. Else the wall clock, on a GPU after waiting for it.
    """
    if device.type == "cuda":

        def waiting() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return waiting
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def median_cpu(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    most_rounds: int = 400,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Median seconds of each call over as many rounds as fit into ``seconds``; every round starts with another one."""
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for name in names:
        calls[name]()
    once = time.perf_counter() - began
    if once < seconds / 20:
        for name in names * 5:
            calls[name]()
    rounds = 0
    while rounds < LEAST_ROUNDS or (rounds < most_rounds and time.perf_counter() - began < seconds):
        for turn in range(len(names)):
            name = names[(turn + rounds) % len(names)]
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
        rounds += 1
    return {name: statistics.median(values) for name, values in taken.items()}


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """The call as a CUDA graph, so that replays time the device alone; None where it cannot be captured.

    Whether it waits for the device is found out before a capture begins: a capture that breaks off leaves the random
    generator in no state to go on with. Every graph has memory of its own, so that one that fails spoils no other.
    """
    try:
        side = torch.cuda.Stream()
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
    names = list(calls)
    for name in names * 3:
        calls[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            flush.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter()
            calls[name]()
            torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def _alternate(calls: Mapping[str, Callable[[], object]], flush: torch.Tensor, rounds: int) -> Times:
    names = list(calls)
    for name in names * 3:
        calls[name]()
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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
