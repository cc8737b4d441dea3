"""The accelerate backend: several processes that compute together, on CPU cores or on a GPU each."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from spec_sdk.cli.jobs import EXIT_LOST
from spec_sdk.contracts import Backend, Finding, Suitability, option
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.step_clock import StepClock
from spec_sdk.ops import Ops
from spec_sdk.ranks import ALONE, Ranks, join, joined, launched_here, launched_processes, launched_rank
from spec_sdk.usable_cores import usable_cores
from spec_sdk_backends.accelerate_launch import start_missing_ranks
from spec_sdk_backends.cpu import ACTIVATIONS, AUTO, EXACT, CpuBackend, CpuConfig, check_threads
from spec_sdk_backends.cuda import CudaBackend, CudaConfig
from spec_sdk_backends.meeting import Meeting
from spec_sdk_backends.thread_waiting import CHOICES

LONGEST_TIMEOUT = 1_000_000
"""Seconds, eleven days: torch.distributed counts in nanoseconds and would overflow."""
LOOK_S = 0.5
"""How often a process that is being joined looks whether the others are still there."""
MEETING_GRACE_S = 10.0
"""Beyond torch's timeouts, for the store and for the connections of all to all."""


@dataclass
class AccelerateConfig:
    """Options of ``backend=accelerate``."""

    device: str = option(
        "auto",
        "where the processes compute",
        choices={"auto": "GPUs if there is one for every process", "cpu": "", "cuda": "a GPU per process"},
    )
    threads: int = option(
        0, "per process on the CPU", minimum=0, means={0: "the machine's cores shared among its processes"}
    )
    pack_weights: bool = option(
        True, "on the CPU: native kernels, or linear layers in oneDNN's layout; false: plain torch"
    )
    activations: str = option(
        AUTO,
        "on the CPU: the rows of a pass, where they are multiplied with weights in few bits",
        choices={**ACTIVATIONS, AUTO: "exact: a last bit of a sum over ranks would tip codes"},
    )
    wait: str = option("auto", "on the CPU: how threads wait for one another", choices=CHOICES)
    pin: bool = option(False, "keep each process on as many CPU cores of its own as it has threads")
    groups: dict[str, Any] = option(
        {"target": None, "draft": None},
        "which ranks hold what: draft: [0, 1]; target: [[0, 2], [1, 3]], for speculation on attention; null: as usual",
    )
    shared_memory: bool = option(
        True, "on the CPU: exchange messages between processes of one machine through memory that they share"
    )
    timeout: float = option(
        600.0, "seconds that a process waits for the others before the run ends", above=0, maximum=LONGEST_TIMEOUT
    )


class AccelerateBackend(Backend):
    """What ``accelerate launch`` or ``torchrun`` started, joined through accelerate; also a single process.

    Raises UserError for options that this machine cannot serve.
    """

    name = "accelerate"
    Config = AccelerateConfig
    config: AccelerateConfig

    def __init__(self, config: AccelerateConfig) -> None:
        super().__init__(config)
        start_missing_ranks()
        self._place, here = launched_here()
        self._on_gpus = _on_gpus(config, here)
        self._threads = config.threads or max(1, len(_cores()) // here)
        check_threads(self._threads)
        if self._on_gpus:
            # several processes wait for each other inside a pass, which no graph holds
            self._local: Backend = CudaBackend(CudaConfig(index=self._place, compile=False))
        else:
            self._local = CpuBackend(
                CpuConfig(
                    threads=self._threads,
                    pack_weights=config.pack_weights,
                    activations=EXACT if config.activations == AUTO else config.activations,
                    wait=config.wait,
                )
            )
            if config.pin:
                # before joining, whose threads inherit it
                _pin(self._place * self._threads, self._threads, here)

    @classmethod
    def suitability(cls, config: AccelerateConfig) -> Suitability:
        """Chosen where a launcher started the process, and not by machine."""
        on_gpus = torch.cuda.is_available() and _on_gpus(config, launched_here()[1])
        local = CudaBackend.suitability(CudaConfig()) if on_gpus else CpuBackend.suitability(CpuConfig())
        return replace(local, rank=None)

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        from spec_sdk_backends.diagnosis import accelerate_findings

        return list(accelerate_findings())

    def join(self) -> None:
        if joined() is None and launched_processes() > 1:
            self._meet()
            if not self._on_gpus:
                # joining sets a number of threads of its own
                torch.set_num_threads(self._threads)

    @property
    def tolerances(self) -> Mapping[torch.dtype, float]:
        return self._local.tolerances

    @property
    def device(self) -> torch.device:
        return self._local.device

    @property
    def ops(self) -> Ops:
        return self._local.ops

    @property
    def ranks(self) -> Ranks:
        return joined() or ALONE

    @property
    def groups(self) -> Mapping[str, Any]:
        return self.config.groups

    def describe(self) -> str:
        each = self._local.describe()
        return each if self.ranks.size == 1 else f"{self.ranks.size} processes, each: {each}"

    @property
    def hardware(self) -> str:
        return self._local.hardware

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        return self._local.load(checkpoint, dtype)

    def clock(self) -> StepClock:
        return self._local.clock()

    def synchronize(self) -> None:
        self._local.synchronize()

    def _meet(self) -> None:
        # accelerate and torch.distributed take seconds to import
        from accelerate import PartialState

        from spec_sdk.errors import RankLost
        from spec_sdk_backends.process_ranks import ProcessRanks, reason

        # decisions are CPU tensors also where the models are on GPUs
        how = {"backend": "cuda:nccl,cpu:gloo"} if self._on_gpus else {"cpu": True}
        meeting, timeout_s = None, self.config.timeout
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with _at_most(2 * timeout_s + MEETING_GRACE_S):
                    if {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
                        meeting = Meeting(launched_rank(), launched_processes(), timeout_s)
                    with _while_all_are_there(meeting):
                        PartialState(timeout=timedelta(seconds=timeout_s), **how)
            except ValueError as error:
                raise UserError(f"the processes of this run cannot be joined: {error}") from error
            except RuntimeError as error:
                raise RankLost(f"the processes of this run did not find each other ({reason(error)})") from error
        join(ProcessRanks(timedelta(seconds=timeout_s), self.config.shared_memory, meeting))


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End this process if what is done meanwhile takes longer.

    Torch's timeout does not hold for who meets a stranger at the leader's port, which never says what a leader would.
    """
    timer = threading.Timer(seconds, _give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _while_all_are_there(meeting: Meeting | None) -> Iterator[None]:
    """End this process if another one that it has met ends before torch, which would not notice, has joined them."""
    done = threading.Event()

    def watch(met: Meeting) -> None:
        while not done.wait(LOOK_S):
            if met.lifelines.is_cut():
                _give_up("another one ended before all had joined")

    if meeting is not None:
        threading.Thread(target=watch, args=(meeting,), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _give_up(why: str = "") -> None:
    if launched_rank() == 0:
        why = why or f"not all of {launched_processes()} processes came, or they were told of another number"
    why = why or "nothing answers at the leader's port"
    line = f"error: the processes of this run did not find each other ({why})"
    # on other ranks than the leader sys.stderr leads nowhere meanwhile
    print(f"process {launched_rank()} of {launched_processes()}: {line}", file=sys.__stderr__, flush=True)
    os._exit(EXIT_LOST)


def _on_gpus(config: AccelerateConfig, processes: int) -> bool:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "cuda" and gpus < processes:
        raise UserError(f"backend.device: {processes} processes need a GPU each, {gpus} are visible; use device=cpu")
    refused = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return config.device == "cuda" or (config.device == "auto" and gpus >= processes and not refused)


@functools.cache
def _cores() -> Sequence[int]:
    """Those that this process may run on, before it is pinned to some of them."""
    return usable_cores()


def _pin(first: int, count: int, processes: int) -> None:
    """Keep this process on ``count`` of its cores, from number ``first`` on. Raises UserError if there are too few."""
    cores = _cores()
    if count * processes > len(cores):
        raise UserError(
            f"backend.pin: {processes} processes of {count} threads need {count * processes} cores, and there are "
            f"{len(cores)}; use pin=false or fewer backend.threads"
        )
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("backend.pin: this system cannot keep a process on a core; use pin=false")
    os.sched_setaffinity(0, cores[first : first + count])
