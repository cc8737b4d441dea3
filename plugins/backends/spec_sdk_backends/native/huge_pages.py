"""Memory for weights in pages of 2 MiB.

Of weights in pages of 4 KiB a pass looks up the places of tens of thousands, which slows reading. Linux gives larger
ones to memory that asks for them, begins where such a page begins, and is not smaller; so weights lie one behind the
other. Where the system has no such page left or never gives any, and on other systems, memory is what it always is.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import torch

PAGE = 2 << 20
REGION = 16 * PAGE
"""Bytes that smaller tensors are laid out in, one behind the other; given back when the last of them is gone."""
ALIGNMENT = 64
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Where Linux says whether memory that asks for large pages may have them: ``always [madvise] never``."""
MAPS = Path("/proc/self/smaps")

_LOCK = Lock()


def _mapped(nbytes: int) -> mmap.mmap:
    """So many bytes and a page more, which ask for large pages."""
    memory = mmap.mmap(-1, nbytes + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # there are kernels without them
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Region:
    """What is taken of some memory, from where a page begins. Tensors keep the memory, and the region does not."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = weakref.ref(memory)
        self.taken = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % PAGE
        self.end = self.taken + len(memory) - PAGE

    def take(self, nbytes: int) -> torch.Tensor | None:
        """So many bytes; None where there is no room, or the memory is gone."""
        memory = self.memory()
        if memory is None or self.taken + nbytes > self.end:
            return None
        taken = torch.frombuffer(memory, dtype=torch.uint8, offset=self.taken, count=nbytes)
        self.taken += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return taken


_current: _Region | None = None


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape in host memory, in large pages where the system has them. Contiguous; not initialised.

    Raises RuntimeError if the memory is not to be had.
    """
    global _current
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(*shape, dtype=dtype)
    try:
        with _LOCK:
            taken = None if _current is None or nbytes >= REGION else _current.take(nbytes)
            if taken is None:
                memory = _mapped(max(REGION, -(-nbytes // PAGE) * PAGE))
                region = _Region(memory)
                taken = region.take(nbytes)
                if nbytes < REGION:
                    _current = region
    except OSError as error:
        raise RuntimeError(f"no memory for {nbytes} bytes: {error}") from error
    assert taken is not None
    return taken.view(dtype).view(*shape)


def setting() -> str | None:
    """``always``, ``madvise`` or ``never``: what the system is set to; None where it does not say."""
    try:
        chosen = re.search(r"\[(\w+)\]", SETTING.read_text())
    except OSError:
        return None
    return chosen[1] if chosen else None


def given() -> float | None:
    """The share of some memory that asked for large pages and got them, now; None where the system does not say."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    tried = empty((REGION + 1,), torch.uint8).fill_(1)
    try:
        lines = iter(MAPS.read_text().splitlines())
    except OSError:
        return None
    for line in lines:
        place = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if place and int(place[1], 16) <= tried.data_ptr() < int(place[2], 16):
            found = next((re.match(r"AnonHugePages: +(\d+) kB", later) for later in lines if "AnonHuge" in later), None)
            return None if found is None else min(1.0, int(found[1]) * 1024 / REGION)
    return None
