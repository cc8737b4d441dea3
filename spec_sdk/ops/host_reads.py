"""How often the host waits for what only the device knows: the synchronisations of a step.

Whoever reads a value back where it would wait for a GPU says so, also on the CPU, where reading costs nothing: then
the count is the same on every device. A greedy step without a drafter reads once; a drafter that grows its tree on the
host adds one per level.
"""

from __future__ import annotations

import threading

import torch

_counter = threading.local()


def read(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in host memory: one read, however many they are."""
    count()
    return [tensor.cpu() for tensor in tensors]


def count() -> None:
    """Note one read that was made in another way."""
    _counter.reads = total() + 1


def total() -> int:
    """Reads of this thread so far."""
    return getattr(_counter, "reads", 0)
