"""Whether threads spin or sleep while they wait for one another: chosen, and chosen again while a run goes on.

Spinning saves what waking costs, at each of the hundreds of barriers of a pass. But a thread that spins holds a core:
where another program wants it, the threads that compute are kept from theirs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping

import torch

from spec_sdk.ranks import launched_here
from spec_sdk_backends.core_use import CoreTimes, granted_cpus, read_core_times
from spec_sdk_backends.openmp_runtime import CPUS_AT_START, Runtime, runtime

CHOICES = {
    "auto": "spin while there are cores for all threads, sleep while others use them",
    "spin": "faster on an idle machine, many times slower on a shared one",
    "sleep": "",
}
"""Of the option ``wait``."""
ENVIRONMENT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How a user says it to any OpenMP program. The runtimes read them when torch is loaded."""
ASLEEP = ("passive", "0")
"""What it is set to where threads shall sleep at once."""
LOOK_S = 0.5
"""Seconds between two looks at who uses the cores."""
FIRST_LOOK_S = 0.1
"""Before, the kernel's clock ticks are too few to count."""
PAUSE = 4
"""Times as long as it should take to the next look: then nothing was computed in between."""
LOOKS_COST = 1 / 200
"""The part of a run's time that they may take: /proc/stat of a machine with many cores takes a millisecond."""
TAKEN = 0.4
"""CPUs that others may use of those that the threads need. Spinning and sleeping are equally fast at about half a CPU;
what spins leaves others less than they want."""
QUIET_LOOKS = 2
"""Looks in a row that find the cores free before threads that were disturbed spin again."""


def reason_to_sleep(threads: int, processes: int, cpus: int, granted: float | None, others: float | None) -> str | None:
    """Why threads should sleep while they wait; None if they may spin.

    ``threads``: of this process; ``processes``: of the run on this machine, with as many each. ``cpus``: that this
    process may run on, of which a limit may grant only a part (``granted``). ``others``: how many of them others use;
    None if unknown.
    """
    if threads * processes > cpus:
        return "more threads than cores"
    if granted is not None and granted < threads * processes:
        return "more threads than a limit grants cores"
    if others is not None and others > cpus - threads + TAKEN:
        return "others use the cores"
    return None


class ThreadWaiting:
    """How the threads of a backend wait: :meth:`before_pass` sees to it, in the thread that computes.

    Under ``auto`` they sleep until the first look has found the cores free. What the environment says wins. ``asleep``:
    whether they sleep now; ``changes``: how often that changed after the first look.
    """

    def __init__(
        self,
        choice: str,
        *,
        environment: Mapping[str, str] = os.environ,
        find_runtime: Callable[[], Runtime | None] = runtime,
        read: Callable[[], CoreTimes] = read_core_times,
        granted: Callable[[], float | None] = granted_cpus,
        threads: Callable[[], int] = torch.get_num_threads,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.asleep = choice != "spin"
        self.changes = 0
        self._chosen_by = next((f"{name}={environment[name]}" for name in ENVIRONMENT if environment.get(name)), None)
        if self._chosen_by is not None:
            self.asleep = self._chosen_by.partition("=")[2].lower() in ASLEEP
        self._runtime = None if self._chosen_by else find_runtime()
        self._read, self._threads, self._clock = read, threads, clock
        self._granted = granted()
        self._processes = launched_here()[1]
        self._before = read()
        self._next_look = clock() + FIRST_LOOK_S if choice == "auto" else math.inf
        # the first look is enough to begin with
        self._quiet_looks = QUIET_LOOKS - 1
        self._looks = 0
        self._until_next_s = LOOK_S
        self._begun_anew = False
        self._reason: str | None = None
        self._apply()

    def before_pass(self) -> None:
        """Look at the cores if it is time to, and have the threads wait as they should."""
        self._look_if_due()
        self._apply()

    def _apply(self) -> None:
        if self._runtime is not None and self._threads() > 1:
            self._runtime.wait(self.asleep)

    def loaded(self) -> None:
        """Give back the threads that loaded a model: passes may be made in another thread, which gets its own.

        libgomp counts both, and lets none of them spin.
        """
        if self._runtime is not None:
            self._runtime.release()

    def describe(self) -> str:
        """How many threads, and how they wait: without figures of the moment, so that like conditions read alike."""
        threads = self._threads()
        if threads == 1:
            return "1 thread"
        if self._chosen_by is not None:
            return f"{threads} threads, waiting by {self._chosen_by}"
        if self._runtime is None:
            return f"{threads} threads"
        self._look_if_due()
        if self.changes:
            return f"{threads} threads, spinning and sleeping by turns"
        reason = f" ({self._reason})" if self.asleep and self._reason else ""
        return f"{threads} threads, {'sleeping' if self.asleep else 'spinning'}{reason}"

    def _look_if_due(self) -> None:
        began = self._clock()
        if began < self._next_look or self._runtime is None:
            return
        now = self._read()
        if self._looks and not self._begun_anew and now.at_s - self._before.at_s > PAUSE * self._until_next_s:
            # what others did meanwhile says nothing of now
            self._before, self._begun_anew, self._next_look = now, True, began + FIRST_LOOK_S
            return
        self._begun_anew = False
        # pinned to cores of its own, it shares none of them with the run's other processes
        processes = self._processes if now.cpus == CPUS_AT_START else 1
        others = now.others_since(self._before)
        reason = reason_to_sleep(self._threads(), processes, now.cpus, self._granted, others)
        self._quiet_looks = 0 if reason else self._quiet_looks + 1
        asleep = reason is not None or (self.asleep and self._quiet_looks < QUIET_LOOKS)
        self.changes += self._looks > 0 and asleep != self.asleep
        self._looks += 1
        self.asleep, self._reason, self._before = asleep, reason, now
        ended = self._clock()
        self._until_next_s = max(LOOK_S, (ended - began) / LOOKS_COST)
        self._next_look = ended + self._until_next_s
