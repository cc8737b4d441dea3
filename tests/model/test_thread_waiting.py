"""How threads wait: the choice from given figures, the switch while a run goes on, and that it reaches the runtime."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import cast

import pytest
import torch

from spec_sdk.config.composing import settings_for
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.usable_cores import usable_cores
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.core_use import CoreTimes
from spec_sdk_backends.cpu import CpuBackend, CpuConfig, CpuOps
from spec_sdk_backends.openmp_runtime import GnuRuntime, Runtime, runtime
from spec_sdk_backends.thread_waiting import ThreadWaiting, reason_to_sleep

CORES = 4
MORE = "more threads than cores"
LIMIT = "more threads than a limit grants cores"
OTHERS = "others use the cores"


class Noted(Runtime):
    """A runtime that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.released = 0

    def wait(self, asleep: bool) -> None:
        self.told.append(asleep)

    def release(self) -> None:
        self.released += 1


class Machine:
    """A machine of four cores, whose clock goes on by :meth:`run`."""

    def __init__(self) -> None:
        self.now, self.idle, self.own, self.cpus, self.reads = 100.0, 0.0, 0.0, CORES, 0
        self.runtime = Noted()

    def run(self, seconds: float, others: float, own: float = 0.5) -> None:
        """Time goes by in which others use so many cores, and this process so many."""
        self.now += seconds
        self.own += own * seconds
        self.idle += (self.cpus - own - others) * seconds

    def read(self) -> CoreTimes:
        self.reads += 1
        return CoreTimes(self.now, self.cpus, self.idle, self.own)

    def waiting(
        self,
        choice: str = "auto",
        threads: int = CORES,
        granted: float | None = None,
        environment: dict[str, str] | None = None,
        read: Callable[[], CoreTimes] | None = None,
    ) -> ThreadWaiting:
        return ThreadWaiting(
            choice,
            environment=environment or {},
            find_runtime=lambda: self.runtime,
            read=read or self.read,
            granted=lambda: granted,
            threads=lambda: threads,
            clock=lambda: self.now,
        )


@pytest.mark.parametrize(
    ("threads", "processes", "cpus", "granted", "others", "reason"),
    [
        (4, 1, 4, None, 0.0, None),
        (4, 1, 4, None, 0.3, None),
        (4, 1, 4, None, 0.6, OTHERS),
        (4, 1, 8, None, 4.0, None),
        (4, 1, 8, None, 5.0, OTHERS),
        (4, 1, 4, None, None, None),
        (5, 1, 4, None, 0.0, MORE),
        (2, 1, 1, None, 0.0, MORE),
        (2, 2, 4, None, 2.0, None),
        (4, 2, 4, None, 0.0, MORE),
        (4, 1, 4, 4.0, 0.0, None),
        (4, 1, 4, 2.5, 0.0, LIMIT),
        (2, 2, 8, 3.0, 0.0, LIMIT),
    ],
)
def test_the_choice(
    threads: int, processes: int, cpus: int, granted: float | None, others: float | None, reason: str | None
) -> None:
    assert reason_to_sleep(threads, processes, cpus, granted, others) == reason


def test_threads_sleep_until_the_cores_are_found_free() -> None:
    machine = Machine()
    waiting = machine.waiting()
    machine.run(0.08, others=0)
    waiting.before_pass()
    assert waiting.asleep, "too early for a look"
    machine.run(0.03, others=0)
    waiting.before_pass()
    assert not waiting.asleep
    assert machine.runtime.told == [True, True, False]
    assert waiting.describe() == "4 threads, spinning"


def test_a_run_that_shares_its_cores_sleeps_and_spins_again_after_two_quiet_looks() -> None:
    machine = Machine()
    waiting = machine.waiting()
    asleep = []
    for others in (0, 0, 1.0, 0, 1.0, 0, 0, 0):
        machine.run(0.6, others=others)
        waiting.before_pass()
        asleep.append(waiting.asleep)
    assert asleep == [False, False, True, True, True, True, False, False]
    assert waiting.describe() == "4 threads, spinning and sleeping by turns"
    assert waiting.changes == 2


def test_cores_that_are_shared_from_the_beginning_are_named() -> None:
    machine = Machine()
    waiting = machine.waiting()
    machine.run(0.6, others=1.0)
    assert waiting.describe() == f"4 threads, sleeping ({OTHERS})"
    assert waiting.asleep


def test_what_others_did_while_nothing_was_computed_does_not_count() -> None:
    machine = Machine()
    waiting = machine.waiting()
    machine.run(60.0, others=0)
    waiting.before_pass()
    assert not waiting.asleep, "of the first look all counts: a model was loaded"
    for others in (0.0, 2.0):
        machine.run(60.0, others=CORES, own=0)
        waiting.before_pass()
        assert not waiting.asleep
        machine.run(0.2, others=others)
        waiting.before_pass()
        assert waiting.asleep == (others > 0)


def test_a_model_whose_every_pass_is_long_is_looked_at_too() -> None:
    machine = Machine()
    waiting = machine.waiting()
    asleep = []
    for others in (0.0, 0.0, 1.0, 1.0, 1.0):
        machine.run(10.0, others=others)
        waiting.before_pass()
        asleep.append(waiting.asleep)
    assert asleep[:2] == [False, False] and asleep[-1]


def test_what_this_process_uses_is_no_sharing() -> None:
    machine = Machine()
    waiting = machine.waiting()
    machine.run(0.6, others=0, own=CORES)
    waiting.before_pass()
    assert not waiting.asleep


def test_looks_are_half_a_second_apart_and_further_where_they_take_long() -> None:
    machine = Machine()
    waiting = machine.waiting()
    for _ in range(1000):
        machine.run(0.01, others=0)
        waiting.before_pass()
    # one to begin with, one after 0.1 s, then one every half second
    assert 20 <= machine.reads <= 23

    slow = Machine()

    def read() -> CoreTimes:
        slow.run(0.01, others=0)
        return slow.read()

    waiting = slow.waiting(read=read)
    for _ in range(1000):
        slow.run(0.01, others=0)
        waiting.before_pass()
    assert 5 <= slow.reads <= 8


@pytest.mark.parametrize(("choice", "asleep"), [("spin", False), ("sleep", True)])
def test_a_fixed_choice_looks_at_nothing(choice: str, asleep: bool) -> None:
    machine = Machine()
    waiting = machine.waiting(choice)
    for _ in range(5):
        machine.run(1.0, others=0 if asleep else 4.0)
        waiting.before_pass()
    assert machine.runtime.told == [asleep] * 6
    assert machine.reads == 1
    assert waiting.describe() == f"4 threads, {'sleeping' if asleep else 'spinning'}"


def test_a_container_that_is_granted_less_than_it_sees_sleeps() -> None:
    machine = Machine()
    waiting = machine.waiting(granted=1.5)
    machine.run(1.0, others=0)
    waiting.before_pass()
    assert waiting.describe() == f"4 threads, sleeping ({LIMIT})"


def test_one_thread_waits_for_nobody() -> None:
    machine = Machine()
    waiting = machine.waiting(threads=1)
    machine.run(1.0, others=0)
    waiting.before_pass()
    assert machine.runtime.told == []
    assert waiting.describe() == "1 thread"


@pytest.mark.parametrize("variable", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
@pytest.mark.parametrize("choice", ["auto", "spin", "sleep"])
def test_the_environment_wins_and_is_named(variable: str, choice: str) -> None:
    machine = Machine()
    waiting = machine.waiting(choice, environment={variable: "7"})
    machine.run(1.0, others=4.0)
    waiting.before_pass()
    waiting.loaded()
    assert machine.runtime.told == [] and machine.runtime.released == 0
    assert waiting.describe() == f"4 threads, waiting by {variable}=7"


def test_an_unknown_runtime_is_left_alone() -> None:
    waiting = ThreadWaiting("auto", environment={}, find_runtime=lambda: None, threads=lambda: 4)
    waiting.before_pass()
    waiting.loaded()
    assert waiting.describe() == "4 threads"


def test_pinned_processes_share_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("spec_sdk_backends.thread_waiting.CPUS_AT_START", CORES)
    machine = Machine()
    waiting = machine.waiting()
    machine.run(1.0, others=0)
    waiting.before_pass()
    assert waiting.describe() == f"4 threads, sleeping ({MORE})"
    machine.cpus = 2
    waiting = machine.waiting(threads=2)
    machine.run(1.0, others=0)
    waiting.before_pass()
    assert waiting.describe() == "2 threads, spinning"


def test_every_pass_of_the_backends_models_sees_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(CpuOps, "before_pass", lambda self: passes.append(threading.get_ident()))
    from spec_sdk.model.session import Session

    for backend in (
        CpuBackend(CpuConfig()),
        CpuBackend(CpuConfig(native=False)),
        AccelerateBackend(AccelerateConfig(device="cpu", threads=1)),
    ):
        passes.clear()
        executor = backend.load(RandomWeights(TINY, 0), torch.float32)
        session = Session(executor.cut([0]))
        session.prefill(0, [1, 2, 3])
        session.feed([0], [[4]])
        # engines of earlier tests may be at work in threads of their own
        assert passes.count(threading.get_ident()) == 2


def test_a_misspelt_choice_is_refused() -> None:
    for backend in ("cpu", "accelerate"):
        with pytest.raises(UserError, match=r"backend\.wait: unknown value 'spinn', did you mean 'spin'\?"):
            settings = settings_for([f"backend={backend}", "backend.wait=spinn"])
            Registry.discover().configure("backend", settings.backend)


def test_as_many_threads_are_added_as_there_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[int] = []

    class Library:
        omp_get_num_procs = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)

        @staticmethod
        def GOMP_parallel(body: object, data: object, threads: int, flags: int) -> None:
            regions.append(threads)

    def helpers() -> int:
        return sum(thread.name == "openmp-waiting" for thread in threading.enumerate())

    monkeypatch.setattr("spec_sdk_backends.openmp_runtime.CPUS_AT_START", 8)
    before, openmp = helpers(), GnuRuntime(cast(ctypes.CDLL, Library))
    openmp.release()
    # a region has its own thread besides those that are added
    for threads, asleep, opened in ((8, True, [2]), (8, True, []), (2, True, [8]), (2, False, []), (9, True, [])):
        regions.clear()
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        openmp.wait(asleep)
        assert regions == opened
        assert helpers() - before == (asleep and threads < 9)


SWITCHED = """
import json, os, threading, time
import torch
from spec_sdk_backends.openmp_runtime import runtime

torch.set_num_threads(2)

def slept():
    # how often threads gave up their core by themselves
    total = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            lines = open(f"/proc/self/task/{thread}/status").read().splitlines()
        except FileNotFoundError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total

def barriers():
    x = torch.ones(1 << 18)
    x + x
    before = slept()
    for _ in range(300):
        x + x
        ends = time.perf_counter() + 5e-5
        while time.perf_counter() < ends:
            pass
    return slept() - before

openmp, found = runtime(), {True: [], False: []}
for asleep in (False, True, True, False, True, False):
    openmp.wait(asleep)
    found[asleep].append(barriers())
# what another thread computes with, once the threads of this one are given back
openmp.release()
other = threading.Thread(target=lambda: found[False].append(barriers()))
other.start()
other.join()
print(json.dumps({"asleep": found[True], "spinning": found[False]}))
"""


@pytest.mark.skipif(not isinstance(runtime(), GnuRuntime), reason="torch's OpenMP runtime is not libgomp")
@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core: libgomp lets no thread spin")
def test_threads_of_libgomp_sleep_and_spin_by_turns() -> None:
    """Nothing is timed: a thread that sleeps gives up its core by itself, one that spins without end never does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    environment["GOMP_SPINCOUNT"] = "infinite"
    run = subprocess.run([sys.executable, "-c", SWITCHED], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert min(found["asleep"]) >= 200
    assert max(found["spinning"]) < 100


def test_importing_the_package_leaves_torch_and_the_environment_alone() -> None:
    code = "import os, sys; before = dict(os.environ); import spec_sdk; assert 'torch' not in sys.modules; "
    code += "from spec_sdk import Engine; assert 'torch' in sys.modules and dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", code], check=True)
