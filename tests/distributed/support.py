"""Runs of several processes on this machine, as a launcher would start them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONGEST_S = 300


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def start(
    size: int, command: Sequence[str], directory: Path | Sequence[Path], of_last: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """``command`` once per rank in ``directory``, with pipes for stdout and stderr, one thread each.

    ``directory``: one for all, or one of each rank. ``of_last``: further arguments of the last rank alone.
    """
    directories = [directory] * size if isinstance(directory, Path) else directory
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    base = {**os.environ, **{name: str(value) for name, value in shared.items()}, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command, *(of_last if rank == size - 1 else ())],
            cwd=directories[rank],
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(size)
    ]


def end(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of every rank, once all have ended; one that hangs is killed and fails the test."""
    try:
        texts = [process.communicate(timeout=LONGEST_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, texts, strict=True)]


def work(size: int, jobs: Sequence[Any], directory: Path) -> list[Any]:
    """What ``size`` ranks of :mod:`tests.distributed.worker` make of ``jobs``, in order."""
    (directory / "jobs.json").write_text(json.dumps(jobs))
    root = Path(__file__).parents[2]
    worker = ["-m", "tests.distributed.worker", str(directory / "jobs.json"), str(directory / "results.json")]
    for rank, (status, out, err) in enumerate(end(start(size, worker, root))):
        assert status == 0, f"rank {rank}: {out}\n{err}"
    results: list[Any] = json.loads((directory / "results.json").read_text())
    return results
