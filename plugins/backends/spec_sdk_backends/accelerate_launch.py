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
from collections.abc import Sequence

from spec_sdk.cli.jobs import EXIT_LOST
from spec_sdk.ranks import launched_processes, under_launcher

GRACE_S = 15.0
"""How long the others may take to end by themselves after the first process did, and it after them."""


def start_missing_ranks() -> None:
    """Become rank 0 of as many processes as accelerate was asked for, and start the rest; nothing elsewhere.

    The others run the same command line with nothing on standard input.
    """
    if launched_processes() > 1 or not under_launcher() or "MASTER_PORT" not in os.environ:
        return
    count = asked_processes(_parent_command())
    if count is None or count < 2:
        return
    print(
        f"accelerate started 1 of {count} processes, as it does without several GPUs: starting {count - 1} more "
        "here (accelerate launch --multi_gpu starts them itself)",
        file=sys.stderr,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in shared.items()}, RANK="0", LOCAL_RANK="0")
    for rank in range(1, count):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-m", "spec_sdk", *sys.argv[1:]]
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        threading.Thread(target=_watch, args=(child, rank), daemon=True).start()
        atexit.register(_end, child)


def asked_processes(command: Sequence[str]) -> int | None:
    """The number of processes that ``command``, a command line of ``accelerate launch``, asks for; None if unknown."""
    if "launch" in command:
        options = list(command[list(command).index("launch") + 1 :])
    else:
        # accelerate-launch, or python -m accelerate.commands.launch
        options = next((list(command[i + 1 :]) for i, word in enumerate(command) if "launch" in word), [])
    if not options:
        return None
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    asked = launch_command_parser().parse_known_args(options)[0]
    if asked.num_machines not in (None, 1):
        return None
    if asked.num_processes is None and (asked.config_file or os.path.isfile(default_config_file)):
        asked.num_processes = getattr(load_config_from_file(asked.config_file), "num_processes", None)
    return None if asked.num_processes is None else int(asked.num_processes)


def _parent_command() -> list[str]:
    import psutil

    try:
        return list(psutil.Process(os.getppid()).cmdline())
    except psutil.Error:
        return []


def _watch(child: subprocess.Popen[bytes], rank: int) -> None:
    """End this process if ``child`` failed and it does not end by itself: it may wait where no error reaches it."""
    status = child.wait()
    if status != 0:
        threading.Event().wait(GRACE_S)
        print(f"error: rank {rank} of this run ended with status {status}", file=sys.stderr, flush=True)
        os._exit(EXIT_LOST)


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    if child.poll() is None:
        child.kill()
