"""What ``accelerate launch --num_processes N`` leaves out: the other processes, on a machine without several GPUs.

There accelerate starts a single process whatever N is (its issue 2741); only with ``--multi_gpu`` it starts N, also on
CPUs. The single process then starts the others itself, so that the plain command means the same on every machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.cli.jobs import EXIT_LOST
from spec_sdk.ranks import joined, launched_processes, under_launcher

GRACE_S, SHORT_GRACE_S = 15.0, 3.0
"""How long the others may take to end by themselves after the first process did, and it after them; this one before it
has met them.
"""
POLL_S = 0.5
_STARTER = "SPEC_SDK_STARTED_BY"
"""The number of the process that started this one as a further rank."""


@dataclass(frozen=True)
class Asked:
    """What a command line of ``accelerate launch`` asks for: processes on each machine, machines, and which this is."""

    here: int
    machines: int = 1
    machine: int = 0


def start_missing_ranks() -> None:
    """Become the first of as many processes as accelerate was asked for on this machine, and start the rest.

    Nothing elsewhere. The others run the same command line with nothing on standard input. On several machines each has
    its launcher, which says where rank 0 is.
    """
    if starter := os.environ.get(_STARTER):
        threading.Thread(target=_end_with, args=(int(starter),), daemon=True).start()
    if launched_processes() > 1 or not under_launcher() or "MASTER_PORT" not in os.environ:
        return
    asked = asked_processes(_parent_command())
    if asked is None or asked.here * asked.machines < 2:
        return
    if asked.here > 1:
        print(
            f"accelerate started 1 of {asked.here} processes, as it does without several GPUs: starting "
            f"{asked.here - 1} more here (accelerate launch --multi_gpu starts them itself)",
            file=sys.stderr,
        )
    first = asked.machine * asked.here
    shared = {"WORLD_SIZE": asked.here * asked.machines, "LOCAL_WORLD_SIZE": asked.here}
    os.environ.update({name: str(value) for name, value in shared.items()}, RANK=str(first), LOCAL_RANK="0")
    if asked.machines == 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    for place in range(1, asked.here):
        own = {"RANK": str(first + place), "LOCAL_RANK": str(place), _STARTER: str(os.getpid())}
        environment = {**os.environ, **own}
        command = [sys.executable, "-m", "spec_sdk", *sys.argv[1:]]
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        threading.Thread(target=_watch, args=(child, first + place), daemon=True).start()
        atexit.register(_end, child)


def asked_processes(command: Sequence[str]) -> Asked | None:
    """What ``command``, a command line of ``accelerate launch``, asks for; None if unknown."""
    if "launch" in command:
        options = list(command[list(command).index("launch") + 1 :])
    else:
        # accelerate-launch, or python -m accelerate.commands.launch
        options = next((list(command[i + 1 :]) for i, word in enumerate(command) if "launch" in word), [])
    if not options:
        return None
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    given = launch_command_parser().parse_known_args(options)[0]
    kept = None
    if given.config_file or os.path.isfile(default_config_file):
        kept = load_config_from_file(given.config_file)

    def value(name: str) -> int | None:
        found = getattr(given, name, None)
        found = getattr(kept, name, None) if found is None else found
        return None if found is None else int(found)

    processes, machines = value("num_processes"), value("num_machines") or 1
    return None if processes is None else Asked(max(1, processes // machines), machines, value("machine_rank") or 0)


def _parent_command() -> list[str]:
    import psutil

    try:
        return list(psutil.Process(os.getppid()).cmdline())
    except psutil.Error:
        return []


def _end_with(starter: int) -> None:
    """End this process if the one that started it is gone before they have met: then their connection says so."""
    while joined() is None:
        if os.getppid() != starter:
            os._exit(EXIT_LOST)
        time.sleep(POLL_S)


def _watch(child: subprocess.Popen[bytes], rank: int) -> None:
    """End this process if ``child`` failed and it does not end by itself: it may wait where no error reaches it."""
    status = child.wait()
    if status != 0:
        threading.Event().wait(GRACE_S if joined() else SHORT_GRACE_S)
        print(f"error: rank {rank} of this run ended with status {status}", file=sys.stderr, flush=True)
        os._exit(EXIT_LOST)


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    if child.poll() is None:
        child.kill()
