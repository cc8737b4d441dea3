"""How a command ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import atexit, sys
from spec_sdk.__main__ import main

class Late:
    def __del__(self):
        print("unwound", flush=True)

late = Late()
atexit.register(print, "at exit")
sys.argv[1:] = sys.argv[1].split()
sys.exit(main())
"""


@pytest.mark.parametrize(("arguments", "status"), [("--version", 0), ("drafter.widht=3", 2)])
@pytest.mark.parametrize("processes", [1, 2])
def test_one_of_several_processes_is_not_unwound(processes: int, arguments: str, status: int) -> None:
    """Threads that torch left would end it with SIGABRT; what is registered for the exit is done."""
    environment = {**os.environ, "WORLD_SIZE": str(processes), "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", CODE, arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    told = done.stdout.splitlines()
    assert "at exit" in told
    assert ("unwound" in told) == (processes == 1)
    assert told[0].startswith("spec-sdk ") or status
