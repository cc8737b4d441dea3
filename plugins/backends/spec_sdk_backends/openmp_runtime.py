"""How the threads of torch's OpenMP runtime wait for one another, switched while the process runs.

A thread that waits may *spin*: it looks at the memory that it waits for again and again, and goes on at once. Or it
*sleeps*: its core is free for others, and the kernel has to wake it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch

from spec_sdk.usable_cores import usable_cores

PAUSE_SOFT = 1
"""omp_pause_soft of OpenMP 5.0: give the threads back, keep all settings."""


MOST_ADDED = 32
"""Threads that are made to have others sleep. libgomp ends the process where the system refuses one."""
CPUS_AT_START = len(usable_cores())
"""Before this process may be pinned to some of them: libgomp counts them once, too."""


class Runtime(ABC):
    """An OpenMP runtime. Its threads spin until :meth:`wait` says otherwise, as torch leaves them."""

    @abstractmethod
    def wait(self, asleep: bool) -> None:
        """From now on the threads that compute for the calling thread sleep while they wait, or spin."""

    @abstractmethod
    def release(self) -> None:
        """Give back the threads that compute for the calling thread; its next computation gets others."""


class GnuRuntime(Runtime):
    """libgomp, of which one thread more than there are CPUs makes all others sleep.

    It reads its settings once, when it is loaded. But whenever a thread begins to wait, it compares how many threads it
    manages with how many CPUs there are. Up to these a thread spins 300,000 times before it sleeps, some milliseconds;
    beyond them 100 times (config/linux/wait.h, ``do_spin``; env.c, ``gomp_throttled_spin_count_var``). So a helper
    thread opens a parallel region of its own: the threads that it is given for it stay with it, asleep, and count
    (team.c). When it ends they do, and the others spin again. Where that would take more than :data:`MOST_ADDED`, for
    few threads on a machine of many cores, they go on spinning.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        # the region's body: a function that does nothing and does not look at the pointer it is called with
        self._body = ctypes.cast(library.omp_get_num_procs, ctypes.c_void_p)
        self._pause = getattr(library, "omp_pause_resource_all", None)
        self._lock = threading.Lock()
        self._helper: _Helper | None = None
        self._added = 0

    def wait(self, asleep: bool) -> None:
        with self._lock:
            adding = max(0, CPUS_AT_START + 1 - torch.get_num_threads()) if asleep else 0
            if adding > MOST_ADDED:
                adding = 0
            if adding == self._added:
                return
            if self._helper is not None:
                self._helper.end()
                self._helper = None
            if adding:
                self._helper = _Helper(lambda: self._parallel(self._body, None, 1 + adding, 0))
            self._added = adding

    def release(self) -> None:
        if self._pause is not None:
            self._pause(PAUSE_SOFT)


class _Helper:
    """A thread that has run ``begin`` and lives until :meth:`end`."""

    def __init__(self, begin: Callable[[], object]) -> None:
        self._ended = threading.Event()
        begun = threading.Event()

        def live() -> None:
            try:
                begin()
            finally:
                begun.set()
            self._ended.wait()

        self._thread = threading.Thread(target=live, name="openmp-waiting", daemon=True)
        self._thread.start()
        begun.wait()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class LlvmRuntime(Runtime):
    """LLVM's and Intel's, which have a function for it. What is set holds for the calling thread's own threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._set_blocktime = library.kmp_set_blocktime
        self._spinning_ms = int(library.kmp_get_blocktime())
        self._of_thread = threading.local()

    def wait(self, asleep: bool) -> None:
        if getattr(self._of_thread, "asleep", False) is not asleep:
            self._of_thread.asleep = asleep
            self._set_blocktime(0 if asleep else self._spinning_ms)

    def release(self) -> None:
        """Does nothing: how other threads wait does not depend on these."""


@functools.cache
def runtime() -> Runtime | None:
    """The runtime that torch computes with in this process; None for one that is not known, or none."""
    for library in _libraries():
        # LLVM's and Intel's answer to libgomp's names as well
        if hasattr(library, "kmp_set_blocktime"):
            return LlvmRuntime(library)
        if sys.platform == "linux" and hasattr(library, "GOMP_parallel"):
            return GnuRuntime(library)
    return None


def _libraries() -> list[ctypes.CDLL]:
    """Where torch finds the functions of its runtime, in that order."""
    torchs = Path(torch.__file__).parent / "lib"
    if os.name == "nt":
        names: list[str | None] = [str(torchs / "libiomp5md.dll")]
    else:
        # first what every library of the process sees, a preloaded runtime among it; then what torch's sees besides
        names = [None, *map(str, torchs.glob("libtorch_cpu.*"))]
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(name))
    return found
