"""The clock that a step's stages are timed by, which waits for no device while the step goes on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import torch


class StepClock(ABC):
    """Marks points in time, and tells afterwards what lay between two of them."""

    @abstractmethod
    def mark(self) -> Any:
        """Now, in the order of the work that was given to the device."""

    @abstractmethod
    def seconds(self, first: Any, last: Any) -> float:
        """Seconds from one mark to a later one. May wait until the device has reached it."""


class HostClock(StepClock):
    """The host's clock: for a device whose work is done when a call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, last: float) -> float:
        return last - first


class StreamClock(StepClock):
    """Events on the stream of a CUDA device that is current when it first marks: marking waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def mark(self) -> torch.cuda.Event:
        if self._stream is None:
            # looking for it takes twice as long as the rest of a mark
            self._stream = torch.cuda.current_stream(self._device)
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
