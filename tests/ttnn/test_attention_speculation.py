"""Speculation on attention on TT-Lang's simulator, in a process of its own: importing the simulator changes torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import FULL

HERE = Path(__file__).parent
CASES = ("speculative_decode_cases.py", "priority_gating_cases.py", "alspec_pipeline_cases.py")


def test_in_a_process_of_its_own() -> None:
    """One for all files: until a process can begin with the first of them takes longer than the whole of it."""
    tier = () if FULL else ("-m", "not full")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tier, *(str(HERE / c) for c in CASES)]
    run = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
