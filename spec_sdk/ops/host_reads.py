"""How often the host waits for what only the device knows: the synchronisations of a step.

Whoever reads a value back where it would wait for a GPU says so, also on the CPU, where reading costs nothing: then
the count is the same on every device. A step reads the verdicts of all its requests at once; a drafter that grows its
tree on the host adds one read per level and request.
"""

from __future__ import annotations

import threading

import torch

_counter = threading.local()


class BegunRead:
    """A tensor on its way to host memory. Work that is given to the device after it is not waited for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = _on_its_way(tensor)
        self._arrival: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> torch.Tensor:
        """The tensor in host memory, once it is there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._host


def begin(tensor: torch.Tensor) -> BegunRead:
    """Begin to read a tensor; :func:`read` ends it."""
    return BegunRead(tensor)


def read(*tensors: torch.Tensor | BegunRead) -> list[torch.Tensor]:
    """The tensors in host memory: one read, with one wait for each device, however many they are."""
    count()
    host = [_on_its_way(tensor) if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    for device in {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return [tensor if isinstance(tensor, torch.Tensor) else tensor.wait() for tensor in host]


def _on_its_way(tensor: torch.Tensor) -> torch.Tensor:
    # to pinned memory, so that no copy waits for the one before
    return tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.cpu()


def count() -> None:
    """Note one read that was made in another way."""
    _counter.reads = total() + 1


def total() -> int:
    """Reads of this thread so far."""
    return getattr(_counter, "reads", 0)
