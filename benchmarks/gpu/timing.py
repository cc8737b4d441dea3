"""How long calls take: on the wall, and of it what the device works.

Device times are the union of the intervals that the profiler reports, so they exist on a GPU only. A process that has
profiled launches more slowly from then on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

PROFILED = 5
"""Calls whose device time is averaged."""


def waiting(device: torch.device) -> Callable[[], None]:
    """Waits for all that the device was given."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def wall_s(runs: Mapping[str, Callable[[], object]], wait: Callable[[], None], rounds: int) -> dict[str, float]:
    """Median wall seconds of each of ``runs``, device included. They take turns, after three calls to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for run in runs.values():
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            wait()
            began = time.perf_counter()
            run()
            wait()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def device_s(run: Callable[[], object], device: torch.device) -> float | None:
    """Seconds of one ``run`` in which the device is busy; None where there is none to ask, or no profiler for it."""
    if device.type != "cuda":
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(PROFILED):
            run()
        torch.cuda.synchronize()
    intervals = [
        (event.time_range.start, event.time_range.end)
        for event in watched.events() or ()
        # an annotation spans the gaps between its kernels
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return covered(intervals) * 1e-6 / PROFILED if intervals else None


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def copy_bytes_per_s(device: torch.device) -> float:
    """What a large copy on the device moves, bytes read plus bytes written."""
    size = 2**31 if device.type == "cuda" else 2**24
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / wall_s({"copy": lambda: target.copy_(source)}, waiting(device), 10)["copy"]


def as_ms(seconds: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(1e3 * value, 4) for name, value in seconds.items()}
