"""How often the host waits for what only the device knows: the synchronisations of a step.

Whoever reads a value back where it would wait for a GPU says so, also on the CPU, where reading costs nothing: then
the count is the same on every device. A step reads the verdicts of all its requests at once; a drafter that grows its
tree on the host adds one read per level and request.
"""

from __future__ import annotations

import threading

import torch

_counter = threading.local()


def read(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in host memory: one read, with one wait for each device, however many they are."""
    count()
    # to pinned memory, so that no copy waits for the one before
    host = [tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.cpu() for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return host


def count() -> None:
    """Note one read that was made in another way."""
    _counter.reads = total() + 1


def total() -> int:
    """Reads of this thread so far."""
    return getattr(_counter, "reads", 0)
