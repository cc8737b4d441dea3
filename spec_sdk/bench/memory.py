"""How much memory a call takes, beyond what it was given."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What Linux takes for setting the high-water mark back (proc(5), clear_refs)."""
SLACK = 2**20
"""Bytes by which the high-water mark may lie above what is resident right after it was set back."""


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that the call holds at once, beyond its inputs. On a CPU by torch's profiler."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    recorded = watched.profiler
    assert recorded is not None and recorded.kineto_results is not None
    changes = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


class PeakBytes:
    """The high-water mark of memory since :meth:`forget`: of torch on a CUDA device, else of this whole process.

    Where the system cannot set the mark back it is that of the process so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def forget(self) -> None:
        """Set the mark back to what is in use now."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            forget_resident_peak()

    def read(self) -> int:
        """Bytes at the mark."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else resident_peak()


def resident_peak() -> int:
    """Bytes: the high-water mark of this process; where Linux's /proc is missing, that of its whole life."""
    try:
        return _status("VmHWM")
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_resident_peak() -> int | None:
    """Resident bytes now, after the high-water mark was set back to them; None where the kernel has no such thing."""
    try:
        CLEAR.write_text(FORGET_PEAK)
        resident, peak = _status("VmRSS"), _status("VmHWM")
    except (OSError, StopIteration):
        return None
    return resident if peak - resident < SLACK else None


def _status(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
