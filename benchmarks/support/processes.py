"""Benchmarks on several processes of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from spec_sdk.pipeline import Pipeline

T = TypeVar("T")


def start_others(count: int, program: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Become rank 0 of ``count`` and start the rest of them: ``program`` with this command line's arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, *program, *sys.argv[1:]]
    return [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(1, count)
    ]


def led(pipeline: Pipeline, work: Callable[[], T]) -> T | None:
    """What ``work`` returns on the leader; the other ranks do meanwhile what it needs of them, and get None."""
    if not pipeline.ranks.is_leader:
        pipeline.follow()
        return None
    done = work()
    pipeline.ranks.finish()
    return done
